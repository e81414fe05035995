"""What is measured of this floor.

r02_clock  a copy, a read and a matmul of this machine
"""
