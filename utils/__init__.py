"""The lowest layer: these modules import no other package of the project."""
