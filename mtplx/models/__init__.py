"""Model families: one file each, data and the target adaptor or MTP head."""
