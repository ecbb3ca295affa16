#include "launcher/agent/node_job.h"

#include <elf.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ddp::launcher {
namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// The smallest ELF file that needs `library`.
std::string elf_that_needs(const std::string& library) {
  constexpr std::uint64_t kBase = 0x400000;
  Elf64_Ehdr header{};
  header.e_ident[EI_MAG0] = ELFMAG0;
  header.e_ident[EI_MAG1] = ELFMAG1;
  header.e_ident[EI_MAG2] = ELFMAG2;
  header.e_ident[EI_MAG3] = ELFMAG3;
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_phoff = sizeof header;
  header.e_phnum = 2;
  const std::uint64_t tables = sizeof header + 2 * sizeof(Elf64_Phdr);
  const std::uint64_t strings = tables + 3 * sizeof(Elf64_Dyn);
  Elf64_Phdr load{};
  load.p_type = PT_LOAD;
  load.p_vaddr = kBase;
  load.p_filesz = strings + library.size() + 2;
  Elf64_Phdr dynamic{};
  dynamic.p_type = PT_DYNAMIC;
  dynamic.p_offset = tables;
  dynamic.p_filesz = 3 * sizeof(Elf64_Dyn);
  Elf64_Dyn needed{};
  needed.d_tag = DT_NEEDED;
  needed.d_un.d_val = 1;
  Elf64_Dyn table{};
  table.d_tag = DT_STRTAB;
  table.d_un.d_ptr = kBase + strings;
  return bytes_of(header) + bytes_of(load) + bytes_of(dynamic) + bytes_of(needed) + bytes_of(table) +
         bytes_of(Elf64_Dyn{}) + '\0' + library + '\0';
}

}  // namespace

TEST_CASE("the thread count concerns Python and programs that need an OpenMP library") {
  const test::TemporaryDirectory directory;
  const auto uses = [&](const std::string& content) {
    return uses_omp_threads(directory.write("program", content));
  };
  for (const char* library : {"libgomp.so.1", "libiomp5.so", "libomp.so.5"}) {
    CAPTURE(library);
    CHECK(uses(elf_that_needs(library)));
  }
  CHECK_FALSE(uses(elf_that_needs("libc.so.6")));
  CHECK_FALSE(uses(elf_that_needs("libgomp")));
  CHECK_FALSE(uses(elf_that_needs("libgomp.so.1").substr(0, 200)));
  CHECK_FALSE(
      uses("\x7f"
           "ELF"));
  CHECK(uses("#!/usr/bin/env python3\nprint()\n"));
  CHECK(uses("#!/opt/venv/bin/python\n"));
  CHECK_FALSE(uses("#!/bin/sh\npython3 x.py\n"));
  CHECK_FALSE(uses(""));
  CHECK_FALSE(uses_omp_threads("/bin/sh"));
  CHECK_FALSE(uses_omp_threads(directory.path / "missing"));
  CHECK(uses_omp_threads("/usr/bin/python3"));
}

}  // namespace ddp::launcher

namespace ddp::launcher {

TEST_CASE("a script whose interpreter is missing is reported before it runs") {
  const test::TemporaryDirectory directory;
  const std::string dir = directory.path;
  const std::string script = dir + "/bad.sh";
  const auto trouble = [&](const std::string& text) {
    return interpreter_trouble(directory.write("bad.sh", text), {{"PATH", dir + "/none:/bin:/usr/bin"}}, dir);
  };
  for (const char* fine : {"#!/bin/sh\n", "#! /bin/sh -e\necho",
                           "\x7f"
                           "ELF",
                           "", "#!", "echo hi\n", "#!/usr/bin/env sh\n", "#!/usr/bin/env -S sh -e\n",
                           "#!/usr/bin/env -i sh\n", "#!/usr/bin/env A=b sh\n"}) {
    CAPTURE(fine);
    CHECK(trouble(fine).empty());
  }
  const std::string begin = "execute " + script + ": ";
  CHECK(trouble("#!/nosuch/interp\n") == begin +
                                             "No such file or directory: its first line names the "
                                             "interpreter /nosuch/interp, which does not exist");
  CHECK(trouble("#!/bin/sh\r\n") == begin +
                                        "No such file or directory: its first line has a Windows line "
                                        "ending; save the file with Unix line endings");
  CHECK(trouble("#!/usr/bin/env nosuch\n") ==
        begin + "its first line asks env for 'nosuch', which is not in PATH");
  CHECK(trouble("#!/usr/bin/env sh -e\n") ==
        begin +
            "its first line asks env for 'sh -e', which is not in "
            "PATH (env takes the rest of the line as one word; use env -S)");
  CHECK(trouble("#!interp\n").find("names the interpreter interp, which does not exist") !=
        std::string::npos);
  directory.write("interp", "");
  CHECK(trouble("#!interp\n").empty());
}

}  // namespace ddp::launcher
