"""Imported first: workers of pytest import torch's compiler when a test compiles, as the entry scripts do."""

from utils.torch_compat import import_dynamo_late

import_dynamo_late()
