// Memory for the kernels: 64-byte aligned, zeroed, in large pages where the system grants them.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace gristmill {

// Says how much was asked for.
class NoMemory : public std::bad_alloc {
 public:
  explicit NoMemory(int64_t bytes) : what_("no memory for " + std::to_string(bytes) + " bytes") {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// The product of sizes; throws NoMemory where it does not fit into 63 bits.
inline int64_t byte_count(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product)) throw NoMemory(std::numeric_limits<int64_t>::max());
  }
  return product;
}

// Grows, never shrinks; growing drops the contents. Pages are handed out by the system when they are
// first touched.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes) { reserve(bytes); }
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void reserve(int64_t bytes) {
    if (bytes <= bytes_) return;
    release();
    data_ = take(bytes);
    if (data_ == nullptr) throw NoMemory(bytes);
    bytes_ = bytes;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
#ifdef __SANITIZE_ADDRESS__  // from the heap: the sanitizer knows where that ends
  static void* take(int64_t bytes) {
    void* data = nullptr;
    return posix_memalign(&data, 64, bytes) == 0 ? std::memset(data, 0, bytes) : nullptr;
  }
  static void give_back(void* data, int64_t) { std::free(data); }
#else
  static void* take(int64_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
  }
  static void give_back(void* data, int64_t bytes) { munmap(data, bytes); }
#endif
  void release() {
    if (data_ != nullptr) give_back(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace gristmill
