"""The features of a model: computed once, kept in a file, and classifiers of them."""
