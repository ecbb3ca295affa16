#include "base/secret.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace ddp {

Secret::Secret(std::string_view bytes) {
  if (bytes.empty()) return;
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
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size_; ++i)
    difference = static_cast<unsigned char>(difference | (a.pages_[i] ^ b.pages_[i]));
  return difference == 0;
}

Result<std::string> random_text(std::size_t bytes) {
  std::string random(bytes, '\0');
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return system_error(errno, "get random bytes from the kernel");
  std::string text;
  for (const char byte : random) {
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

}  // namespace ddp
