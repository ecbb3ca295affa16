#include "remote/ssh/ssh_keys.h"

#include <libssh/libssh.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "remote/ssh/ssh_config_source.h"

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
    case Problem::kNone:
      break;
    case Problem::kEncrypted:
      return "is encrypted";
    case Problem::kUnreadable:
      return "cannot be read";
    case Problem::kAbsent:
      return "does not exist";
    case Problem::kOpen:
      return "is open to others, so ssh does not use it either";
    case Problem::kNoFile:
      return "is not a regular file";
    case Problem::kPublic:
      return "is a public key, and its private key is missing here";
    case Problem::kUnknown:
      return "is not a private key that libssh can use";
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

}  // namespace ddp::remote
