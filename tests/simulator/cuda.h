/* tests/simulator/cuda.h: of the driver's API, nothing. */
