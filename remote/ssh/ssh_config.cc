#include "remote/ssh/ssh_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/parse_text.h"

namespace ddp::remote {
namespace {

using Lines = std::map<std::string, std::vector<std::string>, std::less<>>;

Lines split_lines(std::string_view output) {
  Lines lines;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    std::string_view line = output.substr(0, end);
    output.remove_prefix(std::min(end + 1, output.size()));
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
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!word.empty() && word != "none" && word != "/dev/null") words.emplace_back(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
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
  const Lines lines = split_lines(output);
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

SshConfig default_ssh_config(const std::string& host, const std::string& local_user) {
  SshConfig config;
  config.host_name = host;
  config.user = local_user;
  config.identity_files = {"~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"};
  config.user_known_hosts = {"~/.ssh/known_hosts", "~/.ssh/known_hosts2"};
  config.global_known_hosts = {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"};
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
    case '%':
      return "%";
    case 'd':
      return tokens.home;
    case 'h':
      return tokens.host_name;
    case 'n':
      return tokens.given_name;
    case 'k':
      return tokens.key_alias.empty() ? tokens.given_name : tokens.key_alias;
    case 'p':
      return std::to_string(tokens.port);
    case 'r':
      return tokens.remote_user;
    case 'u':
      return tokens.local_user;
    default:
      return std::nullopt;
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

}  // namespace ddp::remote
