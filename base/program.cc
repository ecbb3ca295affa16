#include "base/program.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

std::array<bool, STDERR_FILENO + 1> filled{};

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

std::string build_id_in(std::string_view notes) {
  constexpr std::string_view kOwner("GNU\0", 4);
  std::uint64_t at = 0;
  while (const auto note = read_as<Elf64_Nhdr>(notes, at)) {
    const std::uint64_t name_at = at + sizeof(Elf64_Nhdr);
    // Name and value are padded to 4 bytes each (elf(5), "Notes").
    const std::uint64_t value_at = name_at + (std::uint64_t{note->n_namesz} + 3) / 4 * 4;
    const auto name = piece(notes, name_at, note->n_namesz);
    const auto value = piece(notes, value_at, note->n_descsz);
    if (!name || !value) return {};
    if (note->n_type == NT_GNU_BUILD_ID && *name == kOwner) return format_hex(*value);
    at = value_at + (std::uint64_t{note->n_descsz} + 3) / 4 * 4;
  }
  return {};
}

/// Returns 0 if the file can be executed, else the errno with the reason.
int executable(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (!S_ISREG(info.st_mode)) return EACCES;
  return faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : EACCES;
}

std::string below(std::string_view cwd, std::string_view file) {
  if (cwd.empty() || (!file.empty() && file.front() == '/')) return std::string(file);
  return std::string(cwd) + "/" + std::string(file);
}

Error refused(std::string_view name, const std::string& file, int err) {
  std::string text = "cannot execute '" + std::string(name) + "': ";
  switch (err) {
    case EISDIR: text += file + " is a directory"; break;
    case EACCES: text += file + " is not an executable file (chmod +x?)"; break;
    default: return system_error(err, text + file, ErrorCode::kExec);
  }
  return {ErrorCode::kExec, one_line(text), err};
}

/// Returns the interpreter named after "#!", without its argument, or "".
std::string interpreter_of(const std::string& head) {
  if (head.compare(0, 2, "#!") != 0) return {};
  const std::size_t from = head.find_first_not_of(" \t", 2);
  if (from == std::string::npos) return {};
  return head.substr(from, head.find_first_of(" \t\n", from) - from);
}

std::string explain(int err, const std::string& file) {
  struct stat info;
  // exec reports ENOENT also for a missing interpreter or loader, so the file itself is looked at.
  const bool exists = stat(file.c_str(), &info) == 0;
  if (err == ENOENT && exists) {
    const std::string interpreter = interpreter_of(read_start(file, 256, O_NONBLOCK));
    if (interpreter.empty()) return "the file exists, but the loader or interpreter that it names does not";
    if (interpreter.back() == '\r')
      return "its first line has a Windows line ending; save the file with Unix line endings";
    return "its first line names the interpreter " + interpreter + ", which does not exist";
  }
  if (err == EACCES && exists) {
    if (S_ISDIR(info.st_mode)) return "it is a directory";
    if (faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) != 0) return "it is not executable (chmod +x)";
    return "a parent directory, the interpreter, or a noexec mount forbids it";
  }
  if (err == ENOEXEC)
    return "it is not a program for this machine; a script needs a first line #!INTERPRETER";
  if (err == E2BIG) return "arguments and environment together are too long for the kernel";
  return {};
}

}  // namespace

void fill_standard_descriptors() {
  // open returns the lowest free number. Like ordinary standard descriptors, it is not close-on-exec.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
    if (fd >= 0 && fd <= STDERR_FILENO) filled[static_cast<std::size_t>(fd)] = true;
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

bool was_closed(int fd) {
  return fd >= 0 && fd <= STDERR_FILENO && filled[static_cast<std::size_t>(fd)];
}

void leave_terminal(int errors) {
  ::setsid();
  ::signal(SIGHUP, SIG_IGN);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::dup2(stream == STDERR_FILENO && errors >= 0 ? errors : null.get(), stream);
}

Result<> print_result(const std::string& text) {
  if (was_closed(STDOUT_FILENO))
    return Error{ErrorCode::kSystem, "cannot write the result: standard output is closed"};
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // a process that shares the descriptor may have made it non-blocking
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (count <= 0) return system_error(errno, "cannot write the result to standard output");
    at += static_cast<std::size_t>(count);
  }
  return {};
}

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
    // By segments, since a stripped program may have no sections.
    if (segment->p_type != PT_NOTE) continue;
    const auto notes = piece(head, segment->p_offset, segment->p_filesz);
    if (notes) identity.build_id = build_id_in(*notes);
    if (!identity.build_id.empty()) return identity;
  }
  return std::nullopt;
}

Result<ElfIdentity> read_elf_identity(const std::string& path) {
  errno = 0;
  const std::string head = read_start(path, kElfHead);
  if (head.empty() && errno != 0) return system_error(errno, path);
  auto identity = elf_identity(head);
  if (!identity)
    return Error{ErrorCode::kAgentMissing, path + " is not a 64-bit Linux program with a build id", 0};
  return std::move(*identity);
}

Result<std::string> find_program(std::string_view name, std::optional<std::string_view> path,
                                 std::string_view cwd) {
  if (name.empty()) return Error{ErrorCode::kExec, "cannot execute '': the program has no name", ENOENT};
  if (name.find('/') != std::string_view::npos) {
    std::string file = below(cwd, name);
    if (const int err = executable(file)) return refused(name, file, err);
    return file;
  }
  // As execvp(3) searches without PATH.
  const std::string_view directories = path.value_or("/bin:/usr/bin");
  // As in execvp, a file that cannot be executed does not end the search; its error is kept.
  std::optional<Error> found_but;
  for (const std::string_view part : split(directories, ':')) {
    std::string directory = below(cwd, part);
    if (directory.empty()) directory = ".";
    if (directory.back() != '/') directory += '/';
    std::string file = directory + std::string(name);
    const int err = executable(file);
    if (err == 0) return file;
    if (err != ENOENT && err != ENOTDIR && !found_but) found_but = refused(name, file, err);
  }
  if (found_but) return *found_but;
  const bool is_here = ::access(below(cwd, name).c_str(), F_OK) == 0;
  std::string where =
      is_here ? "; for the file here write ./" + std::string(name) : " (" + std::string(directories) + ")";
  // Debian has no python.
  if (name == "python" && !is_here && find_program("python3", path, cwd)) where += "; python3 is there";
  return Error{ErrorCode::kExec, one_line("cannot find program '" + std::string(name) + "' in PATH" + where),
               ENOENT};
}

Result<std::string> own_directory() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size < 0) return system_error(errno, "/proc/self/exe");
  const std::string_view text(path, static_cast<std::size_t>(size));
  return std::string(text.substr(0, text.rfind('/')));
}

std::string companion_program(const std::string& directory, const std::string& name) {
  const std::string installed = directory.substr(0, directory.rfind('/')) + "/libexec/ddplaunch/" + name;
  return ::access(installed.c_str(), F_OK) == 0 ? installed : directory + "/" + name;
}

Error exec_error(int err, const std::string& path, const std::string& cwd) {
  Error error = system_error(err, "execute " + path, ErrorCode::kExec);
  const bool relative = path.empty() || path.front() != '/';
  const std::string hint = explain(err, relative && !cwd.empty() ? cwd + "/" + path : path);
  if (!hint.empty()) error.text += ": " + one_line(hint);
  return error;
}

namespace {

/// Returns the number in a name such as "gi3" or "nvidia0"; empty if it is none.
std::string_view number_after(std::string_view name, std::string_view start) {
  if (!name.starts_with(start)) return {};
  name.remove_prefix(start.size());
  return is_digits(name) ? name : std::string_view();
}

/// The driver's file has lines such as "GPU UUID: \t GPU-77…" and "Device Minor: \t 0".
std::string value_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", key.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// Returns the compute instances of a divided GPU. Their folders are …/gpu0/mig/gi3/ci0.
std::vector<std::string> mig_instances(const std::string& proc, const std::string& gpu) {
  const std::string minor = value_in(gpu + "/information", "Device Minor:");
  const std::string uuid = value_in(gpu + "/information", "GPU UUID:");
  std::vector<std::string> names;
  for (const auto& part : list_directory(proc + "/driver/nvidia/capabilities/gpu" + minor + "/mig")) {
    const std::string part_name = part.filename().string();
    const std::string_view part_number = number_after(part_name, "gi");
    if (part_number.empty()) continue;
    for (const auto& instance : list_directory(part)) {
      const std::string name = instance.filename().string();
      if (const std::string_view number = number_after(name, "ci"); !number.empty())
        names.push_back("MIG-" + uuid + "/" + std::string(part_number) + "/" + std::string(number));
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<std::string> visible_gpus(const char* visible, const std::string& proc, const std::string& dev) {
  std::vector<std::string> names;
  if (visible != nullptr) {
    // CUDA stops at the first invalid entry, so "0,1,-1,2" means two devices.
    for (const std::string_view entry : split(visible, ',')) {
      if (entry.empty() || entry[0] == '-' || entry == "NoDevFiles") break;
      names.emplace_back(entry);
    }
    return names;
  }
  auto gpus = list_directory(proc + "/driver/nvidia/gpus");
  std::ranges::sort(gpus);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto instances = mig_instances(proc, gpus[i].string());
    if (instances.empty()) names.push_back(std::to_string(i));
    names.insert(names.end(), instances.begin(), instances.end());
  }
  if (!names.empty()) return names;
  // A container may have the devices without the driver's directory.
  for (const auto& device : list_directory(dev)) {
    const std::string name = device.filename().string();
    if (!number_after(name, "nvidia").empty()) names.push_back(std::to_string(names.size()));
  }
  return names;
}

}  // namespace ddp
