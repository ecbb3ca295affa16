#include "base/program.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ddp {
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

/// The files bin/tool (a program), data/tool (a plain file) and dirs/tool (a directory).
struct Tree : test::TemporaryDirectory {
  Tree() {
    std::filesystem::create_directories(at("/dirs/tool"));
    chmod(write("bin/tool", "#!/bin/sh\n").c_str(), 0755);
    chmod(write("data/tool", "text\n").c_str(), 0644);
  }
  std::string at(const std::string& name) const { return path.string() + name; }
};

std::string found(std::string_view name, std::optional<std::string_view> path, std::string_view cwd = {}) {
  auto result = find_program(name, path, cwd);
  return result ? *result : "error: " + result.error().text;
}

TEST_CASE("a companion program is in libexec of an installation, else in the directory itself") {
  const test::TemporaryDirectory directory;
  const std::string root = directory.path, bin = root + "/bin";
  CHECK(companion_program(bin, "train") == bin + "/train");
  std::filesystem::create_directories(root + "/libexec/ddplaunch");
  CHECK(companion_program(bin, "train") == bin + "/train");
  directory.write("libexec/ddplaunch/train", "#!/bin/sh\n");
  CHECK(companion_program(bin, "train") == root + "/libexec/ddplaunch/train");
  CHECK(companion_program(bin, "ddplaunch-listen") == bin + "/ddplaunch-listen");
}

TEST_CASE("a program is searched as execvp does") {
  const Tree tree;
  const std::string tool = tree.at("/bin/tool");
  CHECK(found("tool", tree.at("/bin")) == tool);
  CHECK(found("tool", "/nonexistent:" + tree.at("/bin/") + ":/usr/bin") == tool);
  // A plain file or a directory of that name does not end the search.
  CHECK(found("tool", tree.at("/data") + ":" + tree.at("/dirs") + ":" + tree.at("/bin")) == tool);
  CHECK(found("sh", std::nullopt) == "/bin/sh");
}

TEST_CASE("an empty entry of PATH is the working directory") {
  const Tree tree;
  const std::string tool = tree.at("/bin/tool");
  CHECK(found("tool", "/nonexistent:", tree.at("/bin")) == tool);
  CHECK(found("tool", ":/nonexistent", tree.at("/bin")) == tool);
  CHECK(found("tool", "", tree.at("/bin")) == tool);
  CHECK(found("tool", "bin", tree.at("")) == tool);
}

TEST_CASE("a name with a slash is a path relative to the working directory") {
  const Tree tree;
  CHECK(found(tree.at("/bin/tool"), "") == tree.at("/bin/tool"));
  CHECK(found("./tool", "/usr/bin", tree.at("/bin")) == tree.at("/bin/./tool"));
  CHECK(found("bin/tool", "", tree.at("")) == tree.at("/bin/tool"));
}

TEST_CASE("a missing program is an error that names the searched places") {
  const Tree tree;
  auto missing = find_program("no-such-tool", "/usr/bin:/bin");
  REQUIRE(missing.has_error());
  CHECK(missing.error().code == ErrorCode::kExec);
  CHECK(missing.error().sys == ENOENT);
  CHECK(missing.error().text == "cannot find program 'no-such-tool' in PATH (/usr/bin:/bin)");
  const auto here = find_program("hosts", "/usr/bin:/bin", "/etc");
  REQUIRE_FALSE(here.has_value());
  CHECK(here.error().text == "cannot find program 'hosts' in PATH; for the file here write ./hosts");
  const std::string with_python3 = tree.at("/bin");
  std::filesystem::copy_file(tree.at("/bin/tool"), tree.at("/bin/python3"));
  CHECK(find_program("python", with_python3).error().text ==
        "cannot find program 'python' in PATH (" + with_python3 + "); python3 is there");
  CHECK(find_program("python", "/nonexistent").error().text ==
        "cannot find program 'python' in PATH (/nonexistent)");
  CHECK(find_program("", "/bin").error().text == "cannot execute '': the program has no name");

  auto plain = find_program("tool", tree.at("/data"));
  CHECK(plain.error().sys == EACCES);
  CHECK(plain.error().text ==
        "cannot execute 'tool': " + tree.at("/data/tool") + " is not an executable file (chmod +x?)");
  auto directory = find_program(tree.at("/dirs"), "");
  CHECK(directory.error().sys == EISDIR);
  CHECK(directory.error().text ==
        "cannot execute '" + tree.at("/dirs") + "': " + tree.at("/dirs") + " is a directory");
  auto nothing = find_program("./gone", "", tree.at("/data"));
  CHECK(nothing.error().sys == ENOENT);
  CHECK(nothing.error().text ==
        "cannot execute './gone': " + tree.at("/data") + "/./gone: No such file or directory");
}

using Names = std::vector<std::string>;

/// The files of another machine.
struct FakeRoot : test::TemporaryDirectory {
  void file(const std::string& name, const std::string& text = "") const { write(name, text); }
  Names gpus(const char* visible) const { return visible_gpus(visible, path / "proc", path / "dev"); }
};

TEST_CASE("GPUs are those of CUDA_VISIBLE_DEVICES, else of the driver, else of device files") {
  FakeRoot root;
  CHECK(root.gpus(nullptr).empty());
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia"})
    root.file(std::string("/dev/") + name);
  CHECK(root.gpus(nullptr) == Names{"0", "1", "2"});
  root.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Device Minor: \t 1\n");
  root.file("/proc/driver/nvidia/gpus/0000:02:00.0/information", "GPU UUID: \t GPU-77\nDevice Minor: \t 0\n");
  CHECK(root.gpus(nullptr) == Names{"0", "1"});
  CHECK(root.gpus("3") == Names{"3"});
  CHECK(root.gpus("0,MIG-3f5c,GPU-77") == Names{"0", "MIG-3f5c", "GPU-77"});
  CHECK(root.gpus("0,1,-1,2") == Names{"0", "1"});
  for (const char* none : {"", "-1", "NoDevFiles"})
    CHECK(root.gpus(none).empty());
}

TEST_CASE("Each instance of a divided GPU counts") {
  FakeRoot root;
  root.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: \t GPU-11\nDevice Minor: \t 1\n");
  root.file("/proc/driver/nvidia/gpus/0000:02:00.0/information", "GPU UUID: \t GPU-77\nDevice Minor: \t 0\n");
  for (const char* instance : {"gi1/ci0", "gi2/ci0", "gi2/ci1"})
    root.file(std::string("/proc/driver/nvidia/capabilities/gpu0/mig/") + instance + "/access");
  root.file("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access");
  root.file("/proc/driver/nvidia/capabilities/mig/config");
  CHECK(root.gpus(nullptr) == Names{"0", "MIG-GPU-77/1/0", "MIG-GPU-77/2/0", "MIG-GPU-77/2/1"});
}

}  // namespace
}  // namespace ddp
