"""Exceptions that are not a fault of ours."""


class UserError(Exception):
    """Something that the person can put right: one sentence with what was wrong, both values, and the way out.

    The command line prints it without a traceback and exits with 2.
    """


class Unavailable(UserError):
    """Something that this machine lacks, such as a package: nothing that it works on is to blame."""
