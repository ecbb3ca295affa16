// Preloaded into the shells of an emulated aarch64 node: they execute a program for aarch64 by qemu-aarch64,
// as the kernel of such a machine executes it. DDP_TEST_QEMU is the path of qemu-aarch64.
// tests/install/aarch64_test.py uses it.
#include <elf.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

bool is_for_aarch64(const char* path) {
  Elf64_Ehdr head{};
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const bool whole = file >= 0 && read(file, &head, sizeof head) == ssize_t{sizeof head};
  if (file >= 0) close(file);
  return whole && std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_machine == EM_AARCH64;
}

}  // namespace

extern "C" int execve(const char* path, char* const argv[], char* const envp[]) {
  const char* const qemu = std::getenv("DDP_TEST_QEMU");
  // Without the right to execute it, or on a file system mounted noexec, the kernel's answer is right.
  if (qemu == nullptr || access(path, X_OK) != 0 || !is_for_aarch64(path))
    return static_cast<int>(syscall(SYS_execve, path, argv, envp));
  std::vector<const char*> words{qemu, "-0", argv[0], path};
  for (char* const* word = argv + 1; *word != nullptr; ++word)
    words.push_back(*word);
  words.push_back(nullptr);
  return static_cast<int>(syscall(SYS_execve, qemu, words.data(), envp));
}
