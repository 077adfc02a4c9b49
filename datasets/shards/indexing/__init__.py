"""Which images and labels shards contain: reading archives, and the index that is made of them once."""
