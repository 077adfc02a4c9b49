"""Recipes, the options of a run (`schema`), and the code that reads them (`reading`); without torch."""
