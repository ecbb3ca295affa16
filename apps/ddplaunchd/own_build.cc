#include "apps/ddplaunchd/commands.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/build_identity.h"
#include "base/sha256.h"
#include "base/unique_fd.h"
#include "remote/bootstrap/bootstrap.h"
#include "rendezvous/protocol/message.h"

namespace ddp {

int answer_fits(const std::vector<std::string>& words) {
  if (words[0] != std::to_string(rendezvous::kProtocolVersion) || words[1] != version()) return 1;
  const auto own = read_elf_identity("/proc/self/exe");
  // The last lines of stderr are shown as the reason why the agent cannot start there.
  if (!own) std::fputs("ddplaunchd: /proc of this PID namespace is not mounted\n", stderr);
  for (std::size_t i = 2; own && i < words.size(); ++i) {
    const std::string_view key(words[i]);
    if (key.substr(0, key.find('.')) != own->build_id) continue;
    std::printf("%s\n", words[i].c_str());
    return 0;
  }
  return remote::kSameVersion;
}

int verify_file(const std::string& sum, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return 1;
  Sha256 hash;
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return 1;
    if (count == 0) break;
    hash.add({buffer.data(), static_cast<std::size_t>(count)});
  }
  return hash.hex() == sum ? 0 : 1;
}

void mark_as_used(const char* directory) {
  const std::string_view path(directory);
  if (path.substr(path.rfind('/') + 1).starts_with("agent-")) ::utimensat(AT_FDCWD, directory, nullptr, 0);
}

}  // namespace ddp
