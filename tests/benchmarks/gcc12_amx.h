// Included before llama.cpp's sources: gcc 12 says that _tile_loadconfig reads 8 bytes of the 64 that it does read,
// drops the stores to the rest, and the program ends at its first tile. With this, AMX works as its authors meant.
#pragma once
#if defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char (*)[64])(config)))
#endif
