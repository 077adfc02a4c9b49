"""The features of a model: computed once, kept in a file, and what is learned on them."""
