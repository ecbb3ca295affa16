// Keys and certificates from files; the settings of a libssh session; greeting and host key; and what to say
// about a refused login.
#include "remote/ssh/ssh_handshake.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <libssh/libssh.h>

#include "base/text.h"
#include "base/unique_fd.h"
#include "remote/ssh/ssh_config.h"

namespace ddp::remote {
namespace {

std::string read_text(const std::string& path) {
  return read_regular_file(path).value_or(std::string());
}

/// Returns true for the formats that need a passphrase. The old PEM header says so. OpenSSH's own format
/// names a cipher right after its magic ("openssh-key-v1", then the string "none" for no encryption).
bool is_encrypted(const std::string& text) {
  const std::size_t header = text.find("-----BEGIN OPENSSH PRIVATE KEY-----");
  if (header == std::string::npos) return text.find("ENCRYPTED") != std::string::npos;
  const std::size_t body = text.find('\n', header);
  return body != std::string::npos && text.compare(body + 1, 31, "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU") != 0;
}

/// A public key is one line: type, base64, comment. A private key never starts so.
bool is_public(const std::string& text) {
  return text.rfind("ssh-", 0) == 0 || text.rfind("ecdsa-", 0) == 0 || text.rfind("sk-", 0) == 0;
}

ssh_key import_key(const std::string& text) {
  ssh_key key = nullptr;
  if (ssh_pki_import_privkey_base64(text.c_str(), nullptr, nullptr, nullptr, &key) != SSH_OK) return nullptr;
  return key;
}

/// Imports a certificate from "TYPE BASE64 comment".
ssh_key import_certificate(const std::string& text) {
  const std::size_t blank = text.find_first_of(" \t");
  if (blank == std::string::npos) return nullptr;
  const std::size_t start = text.find_first_not_of(" \t", blank);
  if (start == std::string::npos) return nullptr;
  const std::string base64 = text.substr(start, text.find_first_of(" \t\r\n", start) - start);
  const auto type = ssh_key_type_from_name(text.substr(0, blank).c_str());
  ssh_key key = nullptr;
  if (ssh_pki_import_cert_base64(base64.c_str(), type, &key) != SSH_OK) return nullptr;
  return key;
}

/// Returns whether `path` is a key file that ssh tries by default.
bool is_usual(const std::string& path) {
  static constexpr std::string_view kNames[] = {"id_rsa",     "id_dsa",        "id_ecdsa", "id_ecdsa_sk",
                                                "id_ed25519", "id_ed25519_sk", "id_xmss"};
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  return path.ends_with("/.ssh/" + std::string(name)) &&
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

SshKey::SshKey(std::string path, ssh_key_struct* key, Problem problem, unsigned mode)
    : path_(std::move(path)), key_(key), problem_(problem), mode_(mode) {}

std::string SshKey::problem_text() const {
  switch (problem_) {
    case Problem::kNone: break;
    case Problem::kEncrypted: return "is encrypted";
    case Problem::kUnreadable: return "cannot be read";
    case Problem::kAbsent: return "does not exist";
    case Problem::kOpen: return "is open to others, so ssh does not use it either";
    case Problem::kNoFile: return "is not a regular file";
    case Problem::kPublic: return "is a public key, and its private key is missing here";
    case Problem::kUnknown: return "is not a private key that libssh can use";
  }
  return {};
}

SshKey::~SshKey() {
  ssh_key_free(key_);
}

std::shared_ptr<const SshKey> SshKeys::key(const std::string& path) {
  const auto [slot, is_new] = loaded_.try_emplace(path);
  if (!is_new) return slot->second;
  if (::access(path.c_str(), F_OK) != 0) {
    const std::string half = path + ".pub";
    if (::access(half.c_str(), F_OK) == 0) {
      slot->second = std::make_shared<SshKey>(half, nullptr, SshKey::Problem::kPublic);
    } else if (!is_usual(path)) {
      slot->second = std::make_shared<SshKey>(path, nullptr, SshKey::Problem::kAbsent);
    }
    return slot->second;
  }
  ssh_key key = nullptr;
  auto problem = SshKey::Problem::kNone;
  struct stat facts {};
  const bool found = ::stat(path.c_str(), &facts) == 0;
  const std::string text = read_text(path);
  if (found && !S_ISREG(facts.st_mode)) {
    problem = SshKey::Problem::kNoFile;
  } else if (!found || ::access(path.c_str(), R_OK) != 0) {
    problem = SshKey::Problem::kUnreadable;
  } else if (is_public(text)) {
    problem = SshKey::Problem::kPublic;
    // OpenSSH's rule (sshkey_perm_ok): only the owner's own files must be private.
  } else if (facts.st_uid == ::getuid() && (facts.st_mode & 077) != 0) {
    problem = SshKey::Problem::kOpen;
  } else if (is_encrypted(text)) {
    problem = SshKey::Problem::kEncrypted;
  } else if ((key = import_key(text)) == nullptr) {
    problem = SshKey::Problem::kUnknown;
  }
  slot->second = std::make_shared<SshKey>(path, key, problem, facts.st_mode & 07777U);
  return slot->second;
}

std::shared_ptr<const SshKey> SshKeys::certified(const std::string& path, const std::string& certificate) {
  const auto [slot, is_new] = loaded_.try_emplace(path + "\n" + certificate);
  if (!is_new) return slot->second;
  ssh_key cert = import_certificate(read_text(certificate));
  if (cert == nullptr) return nullptr;
  // Load a separate key: attaching the certificate changes it.
  ssh_key key = import_key(read_text(path));
  if (key != nullptr && ssh_pki_copy_cert_to_privkey(cert, key) == SSH_OK) {
    slot->second = std::make_shared<SshKey>(certificate, key, SshKey::Problem::kNone);
  } else {
    ssh_key_free(key);
  }
  ssh_key_free(cert);
  return slot->second;
}

SshKeys::List SshKeys::load(const std::vector<std::string>& paths,
                            const std::vector<std::string>& certificates) {
  List list;
  for (const std::string& path : paths) {
    const auto plain = key(path);
    if (!plain) continue;
    if (plain->get() != nullptr) {
      std::vector<std::string> candidates = certificates;
      // As ssh does: the certificate beside the key is tried, and before the plain key.
      candidates.push_back(path + "-cert.pub");
      for (const std::string& certificate : candidates) {
        if (const auto both = certified(path, certificate)) list.push_back(both);
      }
    }
    list.push_back(plain);
  }
  return list;
}

std::string SshKeys::lonely_certificate(const List& keys, const std::vector<std::string>& certificates) {
  const auto used = [&keys](const std::string& certificate) {
    return std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return key->path() == certificate; });
  };
  for (const std::string& certificate : certificates) {
    if (::access(certificate.c_str(), R_OK) == 0 && !used(certificate)) return certificate;
  }
  for (const auto& key : keys) {
    if (key->get() != nullptr) continue;
    std::string stem = key->path();
    if (key->problem() == SshKey::Problem::kPublic && stem.size() > 4 &&
        stem.compare(stem.size() - 4, 4, ".pub") == 0) {
      stem.resize(stem.size() - 4);
    }
    const std::string certificate = stem + "-cert.pub";
    if (::access(certificate.c_str(), R_OK) == 0 && !used(certificate)) return certificate;
  }
  return {};
}

namespace {

struct KeyFree {
  void operator()(ssh_key key) const { ssh_key_free(key); }
};
using SshPublicKey = std::unique_ptr<ssh_key_struct, KeyFree>;

/// The server's key, in the notation of a known_hosts file.
struct ShownKey {
  std::string type;
  std::string base64;
  std::string fingerprint;
};

std::optional<ShownKey> server_key(ssh_session session) {
  ssh_key raw = nullptr;
  if (ssh_get_server_publickey(session, &raw) != SSH_OK) return std::nullopt;
  const SshPublicKey key(raw);
  ShownKey shown;
  shown.type = ssh_key_type_to_char(ssh_key_type(key.get()));
  char* base64 = nullptr;
  if (ssh_pki_export_pubkey_base64(key.get(), &base64) != SSH_OK) return std::nullopt;
  shown.base64 = base64;
  ssh_string_free_char(base64);
  unsigned char* hash = nullptr;
  std::size_t size = 0;
  // The notation that ssh shows, so that the user can compare it.
  if (ssh_get_publickey_hash(key.get(), SSH_PUBLICKEY_HASH_SHA256, &hash, &size) == 0) {
    char* text = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, size);
    if (text != nullptr) shown.fingerprint = text;
    ssh_string_free_char(text);
    ssh_clean_pubkey_hash(&hash);
  }
  return shown;
}

/// Removes algorithms that libssh does not support: host certificates, and hardware keys for hosts. It also
/// removes signal names in the list of key exchanges, which are no algorithms.
std::string plain_algorithms(const std::string& algorithms) {
  std::string kept;
  for (const std::string_view one : split(algorithms, ',')) {
    if (one.find("-cert-") == std::string::npos && !one.starts_with("sk-") &&
        !one.starts_with("kex-strict-") && !one.starts_with("ext-info-"))
      kept += (kept.empty() ? "" : ",") + std::string(one);
  }
  return kept;
}

Error append_key(const SshTarget& target, const ShownKey& key) {
  std::string salt;
  if (target.config.hash_known_hosts) {
    // HashKnownHosts: a salt has the size of the SHA-1 hash, as ssh-keygen -H writes it.
    salt.resize(20);
    if (ssh_get_random(salt.data(), static_cast<int>(salt.size()), 0) != 1) salt.clear();
  }
  std::string line = KnownHosts::new_line(target.known.name, key.type, key.base64, salt);
  const std::size_t slash = target.known_hosts_file.rfind('/');
  if (slash != std::string::npos && slash > 0)
    ::mkdir(target.known_hosts_file.substr(0, slash).c_str(), 0700);
  // One write at the end of the file: lines of several sessions do not mix.
  UniqueFd file(
      ::open(target.known_hosts_file.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  struct stat facts {};
  if (file && (::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode))) {
    return Error{ErrorCode::kUnreachable,
                 target.label + ": cannot save the new host key in " + target.known_hosts_file +
                     ": it is not a regular file",
                 0};
  }
  // The last line of a file edited by hand may lack its line feed.
  char last = '\n';
  if (const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0; size > 0)
    (void)!::pread(file.get(), &last, 1, size - 1);
  if (last != '\n') line.insert(0, 1, '\n');
  if (!file || ::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return system_error(errno, target.label + ": cannot save the new host key in " + target.known_hosts_file,
                        ErrorCode::kUnreachable);
  }
  return Error{};
}

std::string accept_advice(const SshTarget& target) {
  return "check the fingerprint, then accept it with \"" + target.ssh_command +
         " true\", or start with --accept-new-host-keys";
}

std::string remove_advice(const SshTarget& target, const std::string& file) {
  return "ssh-keygen -R '" + target.known.name + "' -f " + file;
}

}  // namespace

std::optional<std::string> configure(ssh_session_struct* session, const SshTarget& target, int fd) {
  const SshConfig& config = target.config;
  const bool no = false;
  // ssh -G has read the configuration. libssh's own parser knows less of it and would override.
  ssh_options_set(session, SSH_OPTIONS_PROCESS_CONFIG, &no);
  ssh_options_set(session, SSH_OPTIONS_HOST, config.host_name.c_str());
  ssh_options_set(session, SSH_OPTIONS_USER, config.user.c_str());
  const unsigned port = config.port;
  ssh_options_set(session, SSH_OPTIONS_PORT, &port);
  // ddplaunch checks host keys against files that it reads once; libssh would read them for every session.
  ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, "/dev/null");
  ssh_options_set(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  // libssh connects to nothing itself: this descriptor is connected already, with a deadline for each
  // address.
  ssh_options_set(session, SSH_OPTIONS_FD, &fd);
  if (config.required_rsa_size > 0) {
    ssh_options_set(session, SSH_OPTIONS_RSA_MIN_SIZE, &config.required_rsa_size);
  }
  if (config.compression) ssh_options_set(session, SSH_OPTIONS_COMPRESSION, "yes");
  if (!config.pubkey_algorithms.empty()) {
    ssh_options_set(session, SSH_OPTIONS_PUBLICKEY_ACCEPTED_TYPES, config.pubkey_algorithms.c_str());
  }

  struct Row {
    const char* name;
    ssh_options_e option;
    std::string value;
  };
  const std::string ciphers = preferred_ciphers(config.ciphers, DDP_LIBSSH_CHECKS_GCM_TAG != 0);
  const Row rows[] = {
      {"Ciphers", SSH_OPTIONS_CIPHERS_C_S, ciphers},
      {"Ciphers", SSH_OPTIONS_CIPHERS_S_C, ciphers},
      {"MACs", SSH_OPTIONS_HMAC_C_S, config.macs},
      {"MACs", SSH_OPTIONS_HMAC_S_C, config.macs},
      {"KexAlgorithms", SSH_OPTIONS_KEY_EXCHANGE, config.kex_algorithms},
      {"HostKeyAlgorithms", SSH_OPTIONS_HOSTKEYS,
       target.known.order_algorithms(plain_algorithms(config.host_key_algorithms))},
  };
  for (const Row& row : rows) {
    if (row.value.empty()) continue;
    // libssh drops the values that it does not know, and fails only if none is left.
    if (ssh_options_set(session, row.option, row.value.c_str()) != SSH_OK) return row.name;
  }
  return std::nullopt;
}

std::optional<std::string> wrong_greeting(std::string_view line) {
  constexpr std::size_t kShown = 100;
  if (line.starts_with("SSH-2.") || line.starts_with("SSH-1.99-")) return std::nullopt;
  const std::string shown = replace_unsafe(line.substr(0, kShown));
  if (line.starts_with("SSH-")) {
    return "only supports SSH version 1 (" + shown + "), which current clients refuse; update its SSH server";
  }
  return "is not an SSH server: its first line is \"" + shown +
         "\"; check the port (port= in the hostfile, Port in the SSH configuration)";
}

std::optional<Error> check_host_key(ssh_session_struct* session, const SshTarget& target,
                                    const Endpoint& endpoint) {
  const auto key = server_key(session);
  if (!key)
    return Error{ErrorCode::kUnreachable, target.label + ": " + endpoint.text + " presented no host key", 0};
  const std::string shown = key->type + " " + key->fingerprint;
  const KnownKey* witness = target.known.witness(key->type, key->base64);
  const std::string place = witness == nullptr ? "" : witness->file + ":" + std::to_string(witness->line);
  std::string text = target.label + ": ";
  switch (target.known.verify(key->type, key->base64)) {
    case KeyVerdict::kKnown: return std::nullopt;
    case KeyVerdict::kUnknown:
      if (target.accept_new_host_keys) {
        // UserKnownHostsFile none: the user wants no key to be remembered.
        if (target.known_hosts_file.empty()) return std::nullopt;
        Error failed = append_key(target, *key);
        if (failed.text.empty()) return std::nullopt;
        return failed;
      }
      text += "unknown host key of " + endpoint.text + " (" + shown + "): no line for " + target.known.name +
              " in " + (target.known_hosts_file.empty() ? "any known_hosts file" : target.known_hosts_file) +
              "; " + accept_advice(target);
      break;
    case KeyVerdict::kOtherType:
      text += "the host key of " + endpoint.text + " (" + shown + ") has another type than the " +
              witness->type + " key known from " + place +
              "; if the host was reinstalled: " + remove_advice(target, witness->file) +
              ", then accept the new key";
      break;
    case KeyVerdict::kChanged:
      text += "THE HOST KEY HAS CHANGED: " + endpoint.text + " shows " + shown + ", but " + place +
              " has another key for " + target.known.name +
              "; this may be a man-in-the-middle attack, so nothing was sent. If the host was reinstalled: " +
              remove_advice(target, witness->file) + ", then accept the new key";
      break;
    case KeyVerdict::kRevoked:
      text += "the host key of " + endpoint.text + " (" + shown + ") is revoked by " + place +
              "; do not connect until the host has a new key";
      break;
  }
  return Error{ErrorCode::kUnreachable, std::move(text), 0};
}

namespace {

/// Returns what to do about a refused login.
std::string login_advice(const SshTarget& target, int offered, bool tried) {
  std::string kerberos;
  if (target.config.gssapi_authentication && (offered & SSH_AUTH_METHOD_GSSAPI_MIC) != 0) {
    kerberos = ", or get a Kerberos ticket with kinit";
  }
  if (offered != 0 && (offered & SSH_AUTH_METHOD_PUBLICKEY) == 0) {
    return "; ddplaunch never prompts: allow keys there (PubkeyAuthentication)" + kerberos +
           ", or log in with \"" + target.ssh_command +
           "\" as a shared connection (ControlMaster, ControlPath, ControlPersist in the SSH configuration) "
           "and "
           "start with --ssh-command ssh";
  }
  std::string advice = "; ";
  std::string locked;
  std::string open;
  for (const auto& key : target.keys) {
    if (key->problem() == SshKey::Problem::kEncrypted) locked += " " + key->path();
    if (key->problem() == SshKey::Problem::kOpen) open += " " + key->path();
  }
  if (!open.empty()) {
    advice += "make the key private: chmod 600" + open;
    if (tried || !locked.empty()) advice += "; or ";
  }
  if (!locked.empty()) {
    const bool agent = !target.agent_socket.empty();
    advice += "unlock the key before the start: ";
    advice += (agent ? "ssh-add" : "eval \"$(ssh-agent)\" && ssh-add") + locked;
    if (tried) advice += "; or ";
  }
  if (tried) {
    advice +=
        "put the public key into ~/.ssh/authorized_keys there, or name another key with identity= in the "
        "hostfile";
  } else if (locked.empty() && open.empty()) {
    advice +=
        "make a key with ssh-keygen and put it there with ssh-copy-id, or name one with identity= in the "
        "hostfile";
  }
  return advice + kerberos;
}

}  // namespace

Error login_refused(const SshTarget& target, const Endpoint& endpoint, int offered, bool agent_asked,
                    const std::string& agent_problem) {
  std::string tried;
  std::string unusable;
  for (const auto& key : target.keys) {
    std::string& list = key->get() != nullptr ? tried : unusable;
    list += (list.empty() ? "" : ", ") + key->path();
    if (key->get() == nullptr) list += " (" + key->problem_text() + ")";
  }
  if (agent_asked) tried += (tried.empty() ? "" : ", ") + std::string("the keys of the ssh-agent");
  std::string methods;
  const auto method = [&methods, offered](int bit, const char* name) {
    if ((offered & bit) != 0) methods += (methods.empty() ? "" : ", ") + std::string(name);
  };
  method(SSH_AUTH_METHOD_PUBLICKEY, "publickey");
  method(SSH_AUTH_METHOD_PASSWORD, "password");
  method(SSH_AUTH_METHOD_INTERACTIVE, "keyboard-interactive");
  method(SSH_AUTH_METHOD_HOSTBASED, "hostbased");
  method(SSH_AUTH_METHOD_GSSAPI_MIC, "gssapi-with-mic");

  std::string text = target.label + ": login as " + target.config.user + " refused by " + endpoint.text;
  text += tried.empty() ? "; there was no key to try" : "; tried " + tried;
  if (!unusable.empty()) text += "; not usable: " + unusable;
  if (!agent_problem.empty()) {
    text += "; the ssh-agent at " + target.agent_socket +
            " (SSH_AUTH_SOCK, IdentityAgent) cannot be used: " + agent_problem;
  }
  if (!methods.empty()) text += "; the server accepts " + methods;
  text += login_advice(target, offered, !tried.empty());
  return Error{ErrorCode::kUnreachable, std::move(text), 0};
}

}  // namespace ddp::remote
