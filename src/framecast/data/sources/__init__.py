"""One module per kind of video that `framecast prepare` reads."""
