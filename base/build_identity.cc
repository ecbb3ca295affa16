#include "base/build_identity.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"

namespace ddp {
namespace {

/// Returns a part of `bytes`, or nothing when the part does not lie inside.
std::optional<std::string_view> piece(std::string_view bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

template <class T>
std::optional<T> read_as(std::string_view bytes, std::uint64_t offset) {
  const auto found = piece(bytes, offset, sizeof(T));
  if (!found) return std::nullopt;
  T value;
  std::memcpy(&value, found->data(), sizeof value);
  return value;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::string build_id_in(std::string_view notes) {
  constexpr std::string_view kOwner("GNU\0", 4);
  std::uint64_t at = 0;
  while (const auto note = read_as<Elf64_Nhdr>(notes, at)) {
    const std::uint64_t name_at = at + sizeof(Elf64_Nhdr);
    const std::uint64_t value_at = name_at + (std::uint64_t{note->n_namesz} + 3) / 4 * 4;
    const auto name = piece(notes, name_at, note->n_namesz);
    const auto value = piece(notes, value_at, note->n_descsz);
    if (!name || !value) return {};
    if (note->n_type == NT_GNU_BUILD_ID && *name == kOwner) return hex(*value);
    at = value_at + (std::uint64_t{note->n_descsz} + 3) / 4 * 4;
  }
  return {};
}

}  // namespace

std::string_view version() {
  return DDP_VERSION;
}

std::optional<ElfIdentity> elf_identity(std::string_view head) {
  const auto header = read_as<Elf64_Ehdr>(head, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) return std::nullopt;
  ElfIdentity identity;
  if (header->e_machine == EM_X86_64) identity.machine = "x86_64";
  if (header->e_machine == EM_AARCH64) identity.machine = "aarch64";
  for (std::uint64_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = read_as<Elf64_Phdr>(head, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) return std::nullopt;
    if (segment->p_type != PT_NOTE) continue;
    const auto notes = piece(head, segment->p_offset, segment->p_filesz);
    if (notes) identity.build_id = build_id_in(*notes);
    if (!identity.build_id.empty()) return identity;
  }
  return std::nullopt;
}

Result<ElfIdentity> read_elf_identity(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_error(errno, path);
  std::string head(kElfHead, '\0');
  std::size_t held = 0;
  while (held < head.size()) {
    const ssize_t count = ::read(file.get(), head.data() + held, head.size() - held);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, path);
    if (count == 0) break;
    held += static_cast<std::size_t>(count);
  }
  auto identity = elf_identity(std::string_view(head).substr(0, held));
  if (!identity)
    return Error{ErrorCode::kAgentMissing, path + " is not a 64-bit Linux program with a build id", 0};
  return std::move(*identity);
}

}  // namespace ddp
