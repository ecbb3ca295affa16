#include "base/program.h"

#include <elf.h>

#include <cstring>
#include <string>

#include "tests/support/catch.h"

using ddp::elf_identity;

namespace {

template <class T>
std::string raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string note(std::uint32_t type, std::string owner, std::string value) {
  Elf64_Nhdr header{};
  header.n_type = type;
  header.n_namesz = static_cast<Elf64_Word>(owner.size());
  header.n_descsz = static_cast<Elf64_Word>(value.size());
  owner.resize((owner.size() + 3) / 4 * 4);
  value.resize((value.size() + 3) / 4 * 4);
  return raw(header) + owner + value;
}

/// Returns a program of two segments; the second one holds `notes`.
std::string program(int machine, const std::string& notes) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = static_cast<Elf64_Half>(machine);
  header.e_phoff = sizeof header;
  header.e_phnum = 2;
  Elf64_Phdr load{};
  load.p_type = PT_LOAD;
  Elf64_Phdr segment{};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof header + 2 * sizeof load;
  segment.p_filesz = notes.size();
  return raw(header) + raw(load) + raw(segment) + notes;
}

const std::string kGnu("GNU\0", 4);

}  // namespace

TEST_CASE("machine and build id of a program") {
  const std::string notes = note(NT_GNU_ABI_TAG, kGnu, "12345") + note(NT_GNU_BUILD_ID, kGnu, "\x01\xab\xff");
  const auto found = elf_identity(program(EM_AARCH64, notes));
  REQUIRE(found);
  CHECK(found->machine == "aarch64");
  CHECK(found->build_id == "01abff");
  CHECK(elf_identity(program(EM_X86_64, notes))->machine == "x86_64");
  CHECK(elf_identity(program(EM_RISCV, notes))->machine.empty());
}

TEST_CASE("a file that is no program has no build ID") {
  CHECK_FALSE(elf_identity(""));
  CHECK_FALSE(
      elf_identity("#!/bin/sh\necho this is a script and not short either ........................."));
  CHECK_FALSE(elf_identity(program(EM_X86_64, note(NT_GNU_BUILD_ID, std::string("XYZ\0", 4), "123"))));
  std::string narrow = program(EM_X86_64, note(NT_GNU_BUILD_ID, kGnu, "123"));
  narrow[EI_CLASS] = ELFCLASS32;
  CHECK_FALSE(elf_identity(narrow));
}

TEST_CASE("any truncated or changed program is read without a crash") {
  const std::string whole = program(EM_X86_64, note(NT_GNU_BUILD_ID, kGnu, "0123456789"));
  for (std::size_t size = 0; size < whole.size() - 2; ++size)
    CHECK_FALSE(elf_identity(std::string_view(whole).substr(0, size)));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x7f, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      (void)elf_identity(changed);
    }
  }
}

TEST_CASE("a missing file is an error") {
  const auto found = ddp::read_elf_identity("/no/such/program");
  REQUIRE_FALSE(found.has_value());
  CHECK(found.error().text == "/no/such/program: No such file or directory");
  CHECK(ddp::read_elf_identity("/proc/self/status").error().text ==
        "/proc/self/status is not a 64-bit Linux program with a build id");
}
