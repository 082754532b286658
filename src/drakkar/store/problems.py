"""What stops a store from being opened."""


class StoreProblem(Exception):
    """The data or its folder cannot be used; the message is one sentence with the cure. Nothing was changed."""
