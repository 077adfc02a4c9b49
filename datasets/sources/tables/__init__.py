"""Files that list images: their rows, columns, and the images of the rows."""
