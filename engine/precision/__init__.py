"""Numeric precision: autocast, loss scaling, master weights, op lists."""
