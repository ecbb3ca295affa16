#include "base/crypto.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/text.h"

namespace ddp {

Secret::Secret(std::string_view bytes) {
  if (bytes.empty()) return;
  // Pages of its own: a core dump leaves them out, and no other object shares them when they are wiped.
  void* pages = ::mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  (void)::madvise(pages, bytes.size(), MADV_DONTDUMP);  // failure is accepted: the secret is still usable
  std::memcpy(pages, bytes.data(), bytes.size());
  pages_ = static_cast<char*>(pages);
  size_ = bytes.size();
}

Secret::Secret(Secret&& other) noexcept
    : pages_(std::exchange(other.pages_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this == &other) return *this;
  wipe();
  pages_ = std::exchange(other.pages_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Secret Secret::take(char* text, std::size_t size) {
  Secret secret{std::string_view(text, size)};
  ::explicit_bzero(text, size);
  return secret;
}

void Secret::wipe() {
  if (pages_ == nullptr) return;
  ::explicit_bzero(pages_, size_);
  ::munmap(pages_, size_);
  pages_ = nullptr;
  size_ = 0;
}

bool operator==(const Secret& a, const Secret& b) {
  if (a.size_ != b.size_) return false;
  // In constant time: the time of the comparison must not tell how many bytes agree.
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size_; ++i)
    difference = static_cast<unsigned char>(difference | (a.pages_[i] ^ b.pages_[i]));
  return difference == 0;
}

Result<std::string> random_text(std::size_t bytes) {
  std::string random(bytes, '\0');
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return system_error(errno, "get random bytes from the kernel");
  std::string text = format_hex(random);
  ::explicit_bzero(random.data(), random.size());
  return text;
}

namespace {

// FIPS 180-4, 4.2.2.
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const unsigned char* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

}  // namespace

void Sha256::take_block(const unsigned char* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i)
    state_[i] += mixed[i];
}

void Sha256::add(std::string_view bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    if (held_ == 0 && bytes.size() >= pending_.size()) {
      take_block(reinterpret_cast<const unsigned char*>(bytes.data()));
      bytes.remove_prefix(pending_.size());
      continue;
    }
    const std::size_t count = std::min(bytes.size(), pending_.size() - held_);
    std::memcpy(pending_.data() + held_, bytes.data(), count);
    held_ += count;
    bytes.remove_prefix(count);
    if (held_ < pending_.size()) return;
    take_block(pending_.data());
    held_ = 0;
  }
}

std::string Sha256::hex() {
  const std::uint64_t bits = size_ * 8;
  std::string tail(1, '\x80');
  // FIPS 180-4, 5.1.1: a one bit, zeros up to 56 bytes of the last block, and the length in bits.
  tail.append((119 - held_) % 64, '\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    tail += static_cast<char>(bits >> shift);
  add(tail);
  std::string text;
  for (const std::uint32_t word : state_)
    text += format_text("%08x", word);
  return text;
}

}  // namespace ddp
