"""Builders of the families for which timm has no constructor with the right arguments; `Family.timm` names them."""
