#include "launcher/agent/omp_use.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

/// More entries than any linker writes; the file may be damaged.
constexpr std::size_t kMostEntries = 4096;
constexpr std::size_t kFirstLine = 256;

/// Returns false if the file ends before `size` bytes.
bool read_at(int fd, void* to, std::size_t size, std::uint64_t offset) {
  return ::pread(fd, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

template <class Entry>
std::vector<Entry> read_table(int fd, std::uint64_t offset, std::size_t count) {
  std::vector<Entry> table(std::min(count, kMostEntries));
  if (!read_at(fd, table.data(), table.size() * sizeof(Entry), offset)) table.clear();
  return table;
}

/// Returns the place in the file of an address in memory; 0: the file does not have it.
std::uint64_t file_offset(const std::vector<Elf64_Phdr>& segments, std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz)
      return segment.p_offset + (address - segment.p_vaddr);
  }
  return 0;
}

bool is_omp_library(std::string_view name) {
  return name.starts_with("libgomp.so") || name.starts_with("libiomp5.so") || name.starts_with("libomp.so");
}

bool elf_needs_omp(int fd) {
  Elf64_Ehdr header{};
  constexpr unsigned char kOrder = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  if (!read_at(fd, &header, sizeof header, 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kOrder)
    return false;
  const auto segments = read_table<Elf64_Phdr>(fd, header.e_phoff, header.e_phnum);
  const auto dynamic = std::find_if(segments.begin(), segments.end(),
                                    [](const Elf64_Phdr& s) { return s.p_type == PT_DYNAMIC; });
  if (dynamic == segments.end()) return false;
  const auto entries = read_table<Elf64_Dyn>(fd, dynamic->p_offset, dynamic->p_filesz / sizeof(Elf64_Dyn));
  std::uint64_t strings = 0;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_STRTAB) strings = file_offset(segments, entry.d_un.d_ptr);
  }
  if (strings == 0) return false;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    char name[16] = {};
    if (entry.d_tag == DT_NEEDED &&
        ::pread(fd, name, sizeof name - 1, static_cast<off_t>(strings + entry.d_un.d_val)) > 0 &&
        is_omp_library(name))
      return true;
  }
  return false;
}

}  // namespace

std::string python_line(const std::string& path) {
  const std::string start = read_start(path, kFirstLine, O_NONBLOCK | O_NOCTTY);
  const std::string line = start.substr(0, start.find('\n'));
  return line.starts_with("#!") && line.find("python") != std::string::npos ? line : "";
}

bool uses_omp_threads(const std::string& path) {
  if (path.substr(path.rfind('/') + 1).starts_with("python") || !python_line(path).empty()) return true;
  const std::string start = read_start(path, SELFMAG, O_NONBLOCK | O_NOCTTY);
  if (!start.starts_with(ELFMAG)) return false;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  return file && elf_needs_omp(file.get());
}

}  // namespace ddp::launcher
