"""What a person types: one file a verb, in it one function of that name, whose signature is the verb's options."""
