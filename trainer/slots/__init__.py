"""How a coordinate's state lies in memory: the layouts of the value table's slots, and the kernels that read them."""
