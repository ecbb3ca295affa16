#include "remote/start/agent_bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/build_identity.h"
#include "base/find_program.h"
#include "base/sha256.h"
#include "base/unique_fd.h"

namespace ddp::remote {
namespace {

std::string own_machine() {
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "";
}

Result<std::string> read_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return system_error(errno, path);
  std::string bytes(static_cast<std::size_t>(found.st_size), '\0');
  std::size_t held = 0;
  while (held < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + held, bytes.size() - held);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, path);
    if (count == 0) break;
    held += static_cast<std::size_t>(count);
  }
  bytes.resize(held);
  return bytes;
}

constexpr const char* kAdvice = "; install the same version there or name it with --agent PATH";

}  // namespace

AgentBundle::AgentBundle(BundleRequest request) : libexec_(request.bin_dir + "/../libexec/ddplaunch/") {
  wanted_.path = request.bin_dir + "/ddplaunchd";
  wanted_.hello = request.hello;
  wanted_.train = request.train;
  const std::string own = own_machine();
  add_program(own, wanted_.path, companion_program(request.bin_dir, "train"));
  for (const std::string machine : {"x86_64", "aarch64"}) {
    if (machine != own)
      add_program(machine, libexec_ + "ddplaunchd-" + machine, libexec_ + "train-" + machine);
  }
}

void AgentBundle::add_program(const std::string& machine, const std::string& agent,
                              const std::string& train) {
  Paths found{agent, {}, {}};
  for (const std::string& path : {agent, wanted_.train ? train : std::string()}) {
    if (path.empty()) continue;
    auto identity = read_elf_identity(path);
    if (!identity || identity->machine != machine) {
      lacks_[machine] = identity ? path + " is for another machine" : identity.error().text;
      return;
    }
    found.key += (found.key.empty() ? "" : ".") + identity->build_id;
  }
  if (wanted_.train) found.train = train;
  wanted_.keys.push_back(found.key);
  paths_.emplace(machine, std::move(found));
}

Error AgentBundle::none_for(const std::string& machine) const {
  const auto why = lacks_.find(machine);
  return {ErrorCode::kAgentMissing,
          "it has no ddplaunchd" + std::string(wanted_.train ? " with train beside it" : "") +
              " of this build, and there is none here for a machine of type " + machine +
              (why == lacks_.end() ? std::string() : " (" + why->second + ")") + kAdvice};
}

Result<std::shared_ptr<const PushSet>> AgentBundle::set_for(const std::string& machine) {
  const std::lock_guard lock(loading_);
  if (const auto known = loaded_.find(machine); known != loaded_.end()) return known->second;
  const auto paths = paths_.find(machine);
  if (paths == paths_.end()) return none_for(machine);
  auto set = std::make_shared<PushSet>();
  set->key = paths->second.key;
  const auto add = [&set](const char* name, const std::string& path) -> Result<> {
    auto bytes = read_file(path);
    if (!bytes) return bytes.error();
    set->files.push_back({name, bytes->size(), sha256_hex(*bytes)});
    set->bytes.push_back(std::move(*bytes));
    return {};
  };
  // The agent comes last: its presence shows that the set is complete.
  if (!paths->second.train.empty()) {
    if (auto added = add("train", paths->second.train); !added) return added.error();
  }
  if (auto added = add("ddplaunchd", paths->second.agent); !added) return added.error();
  loaded_.emplace(machine, set);
  return std::shared_ptr<const PushSet>(std::move(set));
}

}  // namespace ddp::remote
