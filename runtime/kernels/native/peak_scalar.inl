// What plain loops can multiply: the denominator of an efficiency.

template <typename Number>
int64_t multiply_chains(int64_t rounds) {
  volatile Number seed = 1;
  Number sums[8] = {};
  Number x = seed;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+m"(x));  // or the compiler would find the sum without the loop
    for (Number& sum : sums) sum = sum + x * x;
  }
  for (Number sum : sums) seed = sum;
  return rounds * 8;
}

int64_t multiply_adds(ActivationForm form, int64_t rounds) {
  return form == ActivationForm::int8 ? multiply_chains<uint32_t>(rounds) : multiply_chains<float>(rounds);
}

void set_peak_kernels(KernelTable& table) { table.multiply_adds = multiply_adds; }
