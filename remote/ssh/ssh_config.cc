// The shape of configuration files (which hosts can share an answer of ssh -G); the answer itself; tokens;
// and SshConfigSource, which asks.
#include "remote/ssh/ssh_config.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/blocking_calls.h"
#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "remote/bootstrap/bootstrap.h"

namespace ddp::remote {
namespace {

/// Splits a line into keyword and arguments: blanks or one = separate them, "…" protects blanks, # starts a
/// comment.
std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  bool open = false;
  for (char c : line) {
    const bool blank = c == ' ' || c == '\t' || c == '\r' || (c == '=' && words.size() + (open ? 1 : 0) == 1);
    if (c == '"') {
      quoted = !quoted;
      open = true;
    } else if (!quoted && c == '#' && !open) {
      break;
    } else if (!quoted && blank) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(std::move(word));
  return words;
}

/// Options whose tokens ssh -G does not expand, or that ddplaunch does not use. A % in them makes no
/// difference between hosts.
bool keeps_tokens(const std::string& keyword) {
  static constexpr std::array<std::string_view, 9> kKeywords = {
      "identityfile", "controlpath", "proxycommand", "localcommand", "remotecommand",
      "setenv",       "sendenv",     "localforward", "remoteforward"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

/// Keywords that the ssh program obeys and a login through libssh does not (docs/users/ssh.md). Forwardings
/// and settings of a terminal are left out, since nobody expects them of a job.
constexpr std::array<std::string_view, 16> kWithoutEffect = {
    "AddKeysToAgent",      "CASignatureAlgorithms",
    "CheckHostIP",         "ControlMaster",
    "ControlPath",         "ControlPersist",
    "ChannelTimeout",      "GSSAPIDelegateCredentials",
    "GSSAPIKeyExchange",   "IPQoS",
    "RekeyLimit",          "SecurityKeyProvider",
    "ServerAliveInterval", "ServerAliveCountMax",
    "TCPKeepAlive",        "UpdateHostKeys"};

}  // namespace

bool matches_ssh_pattern(std::string_view pattern, std::string_view text) {
  // The usual two-pointer match: after a *, a mismatch returns to one byte behind the last try.
  std::size_t p = 0, t = 0, star = std::string_view::npos, tried = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++tried;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view text) {
  bool matches = false;
  for (const std::string& pattern : patterns) {
    const bool excludes = !pattern.empty() && pattern.front() == '!';
    if (!matches_ssh_pattern(std::string_view(pattern).substr(excludes ? 1 : 0), text)) continue;
    // As in ssh_config(5): a negated pattern that matches excludes the host, whatever else matches.
    if (excludes) return false;
    matches = true;
  }
  return matches;
}

std::vector<std::string> SshConfigShape::add(std::string_view text) {
  std::vector<std::string> includes;
  for (const std::string_view line : split_lines(text)) {
    std::vector<std::string> words = split_words(line);
    if (words.empty()) continue;
    const std::string keyword = lower_case(words.front());
    words.erase(words.begin());
    for (const std::string_view name : kWithoutEffect) {
      if (lower_case(std::string(name)) == keyword) without_effect_.emplace(name);
    }
    if (keyword == "host") {
      host_lines_.push_back(std::move(words));
    } else if (keyword == "include") {
      includes.insert(includes.end(), words.begin(), words.end());
    } else if (keyword == "match") {
      const bool everything = words.size() == 1 && lower_case(words.front()) == "all";
      // Match may run a command or compare the user: only ssh itself can tell for a host.
      if (!everything) asks_for_each_ = true;
    } else if (keyword == "canonicalizehostname") {
      if (words.empty() || lower_case(words.front()) != "no") asks_for_each_ = true;
    } else {
      for (const std::string& word : words) {
        // ssh -G has expanded it with the name of the host that was asked for, so the answer holds for that
        // host alone.
        if (word.find('%') != std::string::npos && !keeps_tokens(keyword)) asks_for_each_ = true;
        if (keyword == "hostname") host_names_.push_back(lower_case(word));
      }
    }
  }
  return includes;
}

std::string SshConfigShape::signature(const std::string& host) const {
  if (asks_for_each_) return {};
  const std::string name = lower_case(host);
  // A HostName equal to the host's own name is indistinguishable from the default, so this host needs its own
  // query.
  if (std::find(host_names_.begin(), host_names_.end(), name) != host_names_.end()) return {};
  std::string text = "=";
  for (const auto& patterns : host_lines_)  // Host compares as written
    text += matches_ssh_patterns(patterns, host) ? '1' : '0';
  return text;
}

namespace {

using Lines = std::map<std::string, std::vector<std::string>, std::less<>>;

Lines lines_by_key(std::string_view output) {
  Lines lines;
  for (std::string_view line : split_lines(output)) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    lines[std::string(line.substr(0, space))].emplace_back(line.substr(space + 1));
  }
  return lines;
}

std::string first(const Lines& lines, std::string_view key) {
  const auto found = lines.find(key);
  return found == lines.end() ? std::string() : found->second.front();
}

std::vector<std::string> all(const Lines& lines, std::string_view key) {
  const auto found = lines.find(key);
  return found == lines.end() ? std::vector<std::string>() : found->second;
}

/// Returns a number of seconds or bits; "none" and unreadable values give 0.
int number(const Lines& lines, std::string_view key) {
  return std::max(parse_number<int>(first(lines, key)).value_or(0), 0);
}

std::string unless_none(std::string text) {
  return text == "none" ? std::string() : text;
}

bool is_yes(const Lines& lines, std::string_view key) {
  const std::string value = first(lines, key);
  return value == "yes" || value == "true" || value == "always";
}

/// Splits several file names on one line. ssh -G writes no quotes: a name with a blank looks like two names,
/// of which the second does not start as a path does.
void append_words(std::string_view text, std::vector<std::string>& words) {
  for (const std::string_view word : split(text, ' '))
    if (!word.empty() && word != "none" && word != "/dev/null") words.emplace_back(word);
}

bool has_blank(std::string_view names) {
  for (std::size_t at = names.find(' '); at != std::string_view::npos; at = names.find(' ', at + 1)) {
    const std::string_view next = names.substr(at + 1);
    if (next.empty() || std::string_view("/~%$").find(next.front()) == std::string_view::npos) return true;
  }
  return false;
}

std::vector<std::string> beyond_libssh(const Lines& lines) {
  std::vector<std::string> names;
  const auto set = [&lines](std::string_view key) {
    const std::string value = first(lines, key);
    return !value.empty() && value != "none";
  };
  // Each of these changes where ssh connects, how it logs in, or whom it trusts, and libssh does not have it.
  // Such a host goes through the ssh program (docs/users/ssh.md).
  if (set("proxyjump")) names.emplace_back("ProxyJump");
  if (set("proxycommand")) names.emplace_back("ProxyCommand");
  if (set("pkcs11provider")) names.emplace_back("PKCS11Provider");
  if (set("knownhostscommand")) names.emplace_back("KnownHostsCommand");
  if (set("revokedhostkeys")) names.emplace_back("RevokedHostKeys");
  if (set("bindaddress")) names.emplace_back("BindAddress");
  if (set("bindinterface")) names.emplace_back("BindInterface");
  if (is_yes(lines, "canonicalizehostname")) names.emplace_back("CanonicalizeHostname");
  if (is_yes(lines, "hostbasedauthentication")) names.emplace_back("HostbasedAuthentication");
  if (is_yes(lines, "nohostauthenticationforlocalhost"))
    names.emplace_back("NoHostAuthenticationForLocalhost");
  if (set("refuseconnection")) names.emplace_back("RefuseConnection");
  if (is_yes(lines, "verifyhostkeydns")) names.emplace_back("VerifyHostKeyDNS");
  const std::string methods = first(lines, "preferredauthentications");
  if (!methods.empty() && methods.find("publickey") == std::string::npos) {
    names.emplace_back("PreferredAuthentications");
  }
  const std::string pubkey = first(lines, "pubkeyauthentication");
  if (pubkey == "no" || pubkey == "false") names.emplace_back("PubkeyAuthentication");
  if (has_blank(first(lines, "userknownhostsfile"))) names.emplace_back("a blank in UserKnownHostsFile");
  if (has_blank(first(lines, "globalknownhostsfile"))) names.emplace_back("a blank in GlobalKnownHostsFile");
  return names;
}

}  // namespace

Result<SshConfig> parse_ssh_config(std::string_view output) {
  const Lines lines = lines_by_key(output);
  SshConfig config;
  config.host_name = first(lines, "hostname");
  if (config.host_name.empty())
    return Error{ErrorCode::kSystem, "the output of ssh -G has no hostname line", 0};
  config.user = first(lines, "user");
  const std::string port = first(lines, "port");
  if (!port.empty()) {
    config.port = parse_number<std::uint16_t>(port).value_or(0);
    if (config.port == 0)
      return Error{ErrorCode::kSystem, "the output of ssh -G has a wrong port: " + port, 0};
  }
  config.identity_files = all(lines, "identityfile");
  config.certificate_files = all(lines, "certificatefile");
  append_words(first(lines, "userknownhostsfile"), config.user_known_hosts);
  append_words(first(lines, "globalknownhostsfile"), config.global_known_hosts);
  config.host_key_alias = first(lines, "hostkeyalias");
  config.identity_agent = first(lines, "identityagent");
  if (config.identity_agent == "SSH_AUTH_SOCK") config.identity_agent.clear();
  const std::string strict = first(lines, "stricthostkeychecking");
  if (!strict.empty()) config.strict_host_key_checking = strict;
  const std::string family = first(lines, "addressfamily");
  if (!family.empty()) config.address_family = family;
  config.ciphers = first(lines, "ciphers");
  config.kex_algorithms = first(lines, "kexalgorithms");
  config.macs = first(lines, "macs");
  config.host_key_algorithms = first(lines, "hostkeyalgorithms");
  config.pubkey_algorithms = first(lines, "pubkeyacceptedalgorithms");
  // The name of the keyword before OpenSSH 8.5.
  if (config.pubkey_algorithms.empty()) config.pubkey_algorithms = first(lines, "pubkeyacceptedkeytypes");
  config.preferred_authentications = first(lines, "preferredauthentications");
  config.proxy_jump = unless_none(first(lines, "proxyjump"));
  config.proxy = config.proxy_jump;
  if (config.proxy.empty()) config.proxy = unless_none(first(lines, "proxycommand"));
  config.control_path = unless_none(first(lines, "controlpath"));
  config.connect_timeout = number(lines, "connecttimeout");
  config.connection_attempts = std::max(number(lines, "connectionattempts"), 1);
  config.required_rsa_size = number(lines, "requiredrsasize");
  config.gssapi_authentication = is_yes(lines, "gssapiauthentication");
  config.identities_only = is_yes(lines, "identitiesonly");
  config.pubkey_authentication = first(lines, "pubkeyauthentication") != "no";
  config.hash_known_hosts = is_yes(lines, "hashknownhosts");
  config.compression = is_yes(lines, "compression");
  config.beyond_libssh = beyond_libssh(lines);
  const std::string session = first(lines, "sessiontype");
  if (!session.empty() && session != "default") config.for_a_command.emplace_back("SessionType=default");
  if (is_yes(lines, "forkafterauthentication"))
    config.for_a_command.emplace_back("ForkAfterAuthentication=no");
  // Closes a session that is silent for some seconds, as in an outage.
  if (!unless_none(first(lines, "channeltimeout")).empty())
    config.for_a_command.emplace_back("ChannelTimeout=none");
  return config;
}

std::string preferred_ciphers(const std::string& ciphers, bool gcm_is_checked) {
  // The defaults of OpenSSH (readconf.c, myproposal.h), before 9.10 and since. Any other list is the user's
  // choice.
  static constexpr std::array<std::string_view, 2> kDefaults = {
      "chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr,aes128-gcm@openssh.com,aes256-gcm@"
      "openssh.com",
      "chacha20-poly1305@openssh.com,aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes192-ctr,"
      "aes256-ctr"};
  if (std::find(kDefaults.begin(), kDefaults.end(), ciphers) == kDefaults.end()) return ciphers;
  const std::string gcm = "aes128-gcm@openssh.com,aes256-gcm@openssh.com";
  const std::string others = "chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr";
  return gcm_is_checked ? gcm + "," + others : others + "," + gcm;
}

namespace {

std::optional<std::string> percent_token(char token, const SshTokens& tokens) {
  switch (token) {
    case '%': return "%";
    case 'd': return tokens.home;
    case 'h': return tokens.host_name;
    case 'n': return tokens.given_name;
    case 'k': return tokens.key_alias.empty() ? tokens.given_name : tokens.key_alias;
    case 'p': return std::to_string(tokens.port);
    case 'r': return tokens.remote_user;
    case 'u': return tokens.local_user;
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<std::string> expand_ssh_tokens(std::string_view path, const SshTokens& tokens) {
  std::string text;
  if (path.substr(0, 2) == "~/") {
    text = tokens.home;
    path.remove_prefix(1);
  } else if (!path.empty() && path.front() == '~') {
    return std::nullopt;  // another user's home
  }
  for (std::size_t i = 0; i < path.size(); ++i) {
    std::optional<std::string> value;
    if (path[i] == '%' && i + 1 < path.size()) {
      value = percent_token(path[++i], tokens);
    } else if (path.substr(i, 2) == "${" && path.find('}', i) != std::string_view::npos) {
      const std::size_t end = path.find('}', i);
      if (tokens.variable) value = tokens.variable(std::string(path.substr(i + 2, end - i - 2)));
      i = end;
    } else {
      value = std::string(1, path[i]);
    }
    if (!value) return std::nullopt;
    text += *value;
  }
  return text;
}

std::string option_beyond_tokens(const SshConfig& config, const SshTokens& tokens) {
  const auto beyond = [&tokens](const std::vector<std::string>& paths) {
    return std::any_of(paths.begin(), paths.end(), [&tokens](const std::string& path) {
      return !expand_ssh_tokens(path, tokens).has_value();
    });
  };
  if (beyond(config.identity_files)) return "IdentityFile";
  if (beyond(config.certificate_files)) return "CertificateFile";
  if (beyond(config.user_known_hosts)) return "UserKnownHostsFile";
  if (beyond(config.global_known_hosts)) return "GlobalKnownHostsFile";
  return {};
}

namespace {

constexpr int kMostAtOnce = 8;
constexpr int kDeepestInclude = 16;  // ssh's own limit
constexpr std::size_t kMostOutput = std::size_t{1} << 20;

bool is_pipe(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_fifo(path, unknown);
}

std::vector<std::string> glob_paths(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i)
      paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return paths;
}

constexpr std::size_t kMost = std::size_t{16} << 20;

}  // namespace

const User& local_user() {
  static const User user = [] {
    if (auto found = find_user(::getuid())) return *found;  // ssh also uses the database, not HOME
    const char* home = std::getenv("HOME");
    return User{std::to_string(::getuid()), home != nullptr ? home : "/"};
  }();
  return user;
}

/// One answer, which several hosts may await.
struct SshConfigSource::Answer {
  explicit Answer(const asio::any_io_executor& loop)
      : known(loop, std::chrono::steady_clock::time_point::max()) {}
  std::optional<Result<SshConfig>> config;
  asio::steady_timer known;  ///< never expires; cancelled when config is set
};

SshConfigSource::SshConfigSource(asio::any_io_executor loop, std::string program, std::string file)
    : loop_(std::move(loop)),
      program_(std::move(program)),
      file_(std::move(file)),
      slot_free_(loop_, std::chrono::steady_clock::time_point::max()) {}

void SshConfigSource::read_files() {
  files_read_ = true;
  if (file_ == "none") return;
  if (!file_.empty()) {
    read_file(file_, 0);
  } else {
    read_file(local_user().home + "/.ssh/config", 0);
    read_file("/etc/ssh/ssh_config", 0);
  }
}

void SshConfigSource::read_file(const std::string& path, int depth) {
  if (depth > kDeepestInclude) return;
  const auto text = read_regular_file(path);
  if (!text) return;
  // A relative Include is resolved by the kind of file (user or system), not by the folder of the file.
  const std::string& home = local_user().home;
  const std::string folder = path.rfind("/etc/ssh/", 0) == 0 ? "/etc/ssh/" : home + "/.ssh/";
  for (std::string name : shape_.add(*text)) {
    if (name.rfind("~/", 0) == 0) name = home + name.substr(1);
    if (name.empty() || name.front() != '/') name = folder + name;
    for (const std::string& included : glob_paths(name))
      read_file(included, depth + 1);
  }
}

Awaitable<Result<SshConfig>> SshConfigSource::find(Host host,
                                                   std::chrono::steady_clock::time_point deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  // Each query reads the file again, and a pipe (--ssh-config <(...)) can be read once at most.
  if (is_pipe(file_)) {
    co_return Error{ErrorCode::kUnreachable,
                    host.name + ": the SSH configuration " + file_ + " is a pipe; name a file", 0};
  }
  if (!files_read_) read_files();
  const std::string signature = shape_.signature(host.name);
  std::string key = signature;
  if (signature.empty()) key = host.name + "\n" + host.user + "\n" + std::to_string(host.port);
  auto& slot = answers_[key];
  // One query for all hosts to which the same Host lines apply: ssh -G costs a process each.
  const bool first = slot == nullptr;
  if (first) slot = std::make_shared<Answer>(loop_);
  const std::shared_ptr<Answer> answer = slot;
  if (first)
    // Not part of this call, because other hosts may wait for the answer when this one is cancelled.
    asio::co_spawn(loop_, ask(shared_from_this(), answer, host),
                   asio::detached);  // sets the answer, and ends

  asio::steady_timer limit(loop_);
  if (deadline != std::chrono::steady_clock::time_point::max()) {
    limit.expires_at(deadline);
    limit.async_wait([answer](const error_code& error) {
      if (!error) answer->known.cancel();
    });
  }
  while (!answer->config) {
    co_await answer->known.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      co_return Error{ErrorCode::kCancelled, host.name + ": cancelled", 0};
    }
    if (!answer->config && std::chrono::steady_clock::now() >= deadline) {
      co_return Error{ErrorCode::kTimeout,
                      host.name + ": " + program_ +
                          " -G did not answer in time; check whether a \"Match exec\" line or a pipe in the "
                          "SSH configuration blocks",
                      0};
    }
  }
  if (!*answer->config) co_return within(host.name, answer->config->error());

  SshConfig config = **answer->config;
  if (!signature.empty() && config.host_name.empty()) config.host_name = lower_case(host.name);
  if (!host.address.empty()) config.host_name = host.address;
  if (!host.user.empty()) config.user = host.user;
  // The hostfile is about this job and wins over the SSH configuration, which is about all uses of the host.
  if (host.port != 0) config.port = host.port;
  if (!host.identity.empty()) config.identity_files.insert(config.identity_files.begin(), host.identity);
  co_return config;
}

Awaitable<void> SshConfigSource::ask(std::shared_ptr<SshConfigSource> self, std::shared_ptr<Answer> answer,
                                     Host host) {
  while (self->running_ >= kMostAtOnce)
    co_await self->slot_free_.async_wait(kUseTuple);
  ++self->running_;
  // The queried name stands for every host that shares the answer. Settings of this host alone stay out of
  // it.
  const bool shared = !self->shape_.signature(host.name).empty();
  if (shared) host.user.clear();
  if (shared) host.port = 0;
  auto config = co_await self->run(host);
  --self->running_;
  self->slot_free_.cancel_one();
  // The default: each host that shares the answer puts in its own name.
  if (shared && config && config->host_name == lower_case(host.name)) config->host_name.clear();
  answer->config = std::move(config);
  answer->known.cancel();
}

Awaitable<Result<SshConfig>> SshConfigSource::run(Host host) {
  auto config = co_await run_program(host, false);
  // ssh -G requires a command if ForkAfterAuthentication is set, and refuses a command if RemoteCommand is
  // set.
  if (!config && config.error().text.find("without a command") != std::string::npos)
    config = co_await run_program(std::move(host), true);
  co_return config;
}

/// Returns OpenSSH's defaults, unless the user named a file.
Result<SshConfig> SshConfigSource::without_program() const {
  const User& user = local_user();
  SshConfig config;
  config.user = user.name;
  config.identity_files = {"~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"};
  config.user_known_hosts = {"~/.ssh/known_hosts", "~/.ssh/known_hosts2"};
  config.global_known_hosts = {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"};
  if (file_ == "none") return config;
  if (!file_.empty()) {
    return Error{ErrorCode::kUnreachable,
                 "the SSH configuration " + file_ + " can only be read by the ssh program, and there is no " +
                     program_ + " here: install OpenSSH's client",
                 0};
  }
  std::error_code unknown;
  const std::string own = user.home + "/.ssh/config";
  if (std::filesystem::exists(own, unknown)) config.unread_file = own;
  return config;
}

Awaitable<Result<SshConfig>> SshConfigSource::run_program(Host host, bool with_command) {
  ++questions_;
  std::vector<std::string> argv{program_, "-G", "-T"};
  if (!file_.empty()) argv.insert(argv.end(), {"-F", file_});
  if (!host.user.empty()) argv.insert(argv.end(), {"-l", host.user});
  if (host.port != 0) argv.insert(argv.end(), {"-p", std::to_string(host.port)});
  argv.insert(argv.end(), {"--", host.name});
  if (with_command) argv.emplace_back("true");
  auto spec = own_child(std::move(argv));
  auto errors = memory_file("ddplaunch-ssh-config");
  if (!errors) co_return errors.error();
  ToolOutput output;
  if (spec) {
    spec->err = errors->get();
    ToolStop stop;
    stop.at_limit = true;
    output = co_await run_tool(std::move(*spec), std::chrono::steady_clock::time_point::max(), kMostOutput,
                               nullptr, &stop);
  } else {
    output.status = spec.error();
  }
  if (!output.status && output.status.error().sys == ENOENT) {
    auto config = without_program();
    if (config) config->host_name = host.name;
    co_return config;
  }
  if (output.cut) {
    co_return Error{ErrorCode::kUnreachable,
                    program_ + " -G printed more than 1 MiB, which is no SSH configuration", 0};
  }
  if (!output.status) co_return within(host.name, output.status.error());
  if (output.success()) co_return parse_ssh_config(output.text);
  TailLines words;
  words.feed(read_whole(errors->get(), kMostOutput));
  co_return Error{ErrorCode::kUnreachable,
                  "the SSH configuration was rejected by " + program_ + ":" + words.text(), 0};
}

std::optional<std::string> read_regular_file(const std::string& path) {
  // O_NONBLOCK keeps the open of a pipe from waiting for its writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  std::string text;
  char chunk[16384];
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk, sizeof chunk);
    if (count < 0) return std::nullopt;
    if (count == 0 || text.size() >= kMost) return text;
    text.append(chunk, static_cast<std::size_t>(count));
  }
}

}  // namespace ddp::remote
