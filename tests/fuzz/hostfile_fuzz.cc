// Parses arbitrary text as a hostfile, as --host, as the host lists of schedulers, and as a shell command.
// The text behind the last '|' is the filter of --include and --exclude.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/host.h"
#include "remote/hosts/hostfile.h"
#include "remote/hosts/shell_command.h"
#include "tests/fuzz/require.h"

namespace {

using ddp::remote::Host;
using HostsOrDiagnostics = ddp::remote::Validated<std::vector<Host>>;

// Checks the guarantees that callers of the parsers rely on.
void check(const HostsOrDiagnostics& parsed, bool from_scheduler = false) {
  if (!parsed) {
    require(!parsed.error().list.empty() && parsed.error().list.size() <= ddp::remote::kMaxDiagnostics);
    for (const ddp::remote::Diagnostic& diagnostic : parsed.error().list)
      require(!diagnostic.message.empty());
    return;
  }
  require(!parsed->empty() && parsed->size() <= ddp::remote::kMaxHosts);
  std::set<std::string> names;
  for (const Host& host : *parsed) {
    std::string folded = host.name;
    for (char& c : folded)
      c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    require(names.insert(folded).second);
    require(ddp::remote::is_host_name(host.name) || ddp::remote::is_ipv6(host.name));
    require(host.user.empty() || ddp::remote::is_user_name(host.user));
    require(host.address.empty() || ddp::remote::is_host_name(host.address) ||
            ddp::remote::is_ipv6(host.address));
    require(!host.slots || (*host.slots >= 1 && *host.slots <= ddp::remote::kMaxSlots));
    require(host.chdir.empty() || host.chdir.front() == '/');
    require(host.location.column >= (from_scheduler ? 0 : 1));
  }
}

// split_words() must read the words back that shell_quote() wrote.
void check_words(const std::string& text) {
  const auto words = ddp::remote::split_words(text);
  if (!words || words->empty()) return;
  const auto line = ddp::remote::shell_quote(*words);
  if (line) require(*ddp::remote::split_words(*line) == *words);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t bar = input.rfind('|');
  const std::string_view text = input.substr(0, bar);
  const std::string_view filter = bar == std::string_view::npos ? std::string_view() : input.substr(bar + 1);
  const HostsOrDiagnostics hosts = ddp::remote::parse_hostfile(text, "hosts");
  check(hosts);
  check(ddp::remote::parse_host_list(text, "--host"));
  check_words(std::string(text));
  check(ddp::remote::slurm_hosts({std::string(text), std::string(filter), "", "8"}), true);
  check(ddp::remote::repeated_hosts(text, "nodes"), true);
  check(ddp::remote::parse_host_counts(text, "LSB_MCPU_HOSTS"), true);
  check(ddp::remote::grid_engine_hosts(text, "pe_hosts"), true);
  // Copies of long host lists would slow the fuzzer down without new coverage.
  if (hosts && hosts->size() < 1000 && !filter.empty()) {
    check(ddp::remote::filter_hosts(*hosts, filter, ""));
    check(ddp::remote::filter_hosts(*hosts, "", filter));
  }
  return 0;
}
