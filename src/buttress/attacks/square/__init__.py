"""The Square attack (arXiv:1912.00049): windows, proposals and the search over them."""
