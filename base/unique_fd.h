#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "base/result.h"

namespace ddp {

/// Owns one file descriptor; -1 is empty. Descriptors are opened close-on-exec, never made so later.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Opens /dev/null as each of the descriptors 0, 1 and 2 that this process was started without. Otherwise the
/// next files, sockets or timers would get these numbers and receive text for the terminal. Call it first in
/// main, before anything is opened.
void fill_standard_descriptors();
/// Returns whether fill_standard_descriptors had to open `fd`. Anything written to it is lost.
bool was_closed(int fd);

/// Writes all of `text` to standard output, which must get nothing else. A partial result must not pass for a
/// complete one, so an incomplete write is an error. Blocks. Error: kSystem, the output is full or was closed
/// from the start (fill_standard_descriptors).
Result<> print_result(const std::string& text);

/// Prepares a connected TCP socket of a control link. Call it after connect() or accept(), since a short
/// limit of the back-off would also shorten the attempts to connect.
///
/// - Small messages are sent at once (TCP_NODELAY).
/// - The kernel repeats lost segments each second at the latest (TCP_RTO_MAX_MS, Linux 6.15). Older kernels
///   double the interval, so that a link may stay silent for as long again as the network was down.
/// - TCP itself does not end the link for 7 days. The leases and timeouts of master and agent end it, and
///   users choose those. Without TCP_USER_TIMEOUT a kernel with the short interval would give up after 15
///   repetitions, which is 14.4 s.
///
/// An option that the kernel does not know is skipped. Returns whether the back-off is limited.
bool set_link_options(int fd);

}  // namespace ddp
