"""Study of a GPU beside its survey: attention kernels, overlap, gradient products, sustained products, launches."""
