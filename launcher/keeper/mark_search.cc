#include "launcher/keeper/mark_search.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/child_setup.h"
#include "base/parse_text.h"
#include "launcher/keeper/process_fd.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

/// Reading one environment takes microseconds, so a busy machine does not explain a silence of this length.
constexpr std::chrono::milliseconds kStall{500};
/// The time for a reader to die of its SIGKILL, which takes longer than a few ms only on a busy machine. A
/// reader that the kernel holds longer is not waited for, and remains as a zombie.
constexpr std::chrono::milliseconds kDeathTime{500};
constexpr std::size_t kMaxEnvironment = 4u << 20;
/// The number of times that a process is read again, 1 ms apart, until its exec has given it an environment.
constexpr int kExecTries = 100;
constexpr int kEmptyTries = 2;

/// The reader answers for each process in turn: LOCAL_RANK, or one of these.
constexpr int kNoNumber = -1;
constexpr int kUnmarked = -2;
constexpr int kUnread = -3;     ///< its exec did not come to an end
constexpr int kHidden = -4;     ///< it has no environment, or none that we may read
constexpr int kElsewhere = -5;  ///< it has ended, or another job's mark

int mark_in(std::string_view environment, std::string_view mark) {
  const auto rank = entry_value(environment, "LOCAL_RANK");
  const bool ours = has_entry(environment, mark);
  if (!ours && entry_value(environment, "DDPLAUNCH_JOB_ID")) return kElsewhere;
  if (!ours || !rank) return kUnmarked;
  const int number = parse_number<int>(*rank).value_or(kNoNumber);
  return number >= 0 ? number : kNoNumber;
}

/// Returns the first bytes of /proc/`pid`/`name`. Unset: it cannot be opened.
std::optional<std::string_view> read_proc_file(pid_t pid, std::string_view name, std::span<char> buffer) {
  char path[32] = "/proc/";
  char* end = std::to_chars(path + 6, path + sizeof path, pid).ptr;
  *end++ = '/';
  *std::copy(name.begin(), name.end(), end) = '\0';
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t count = read(fd, buffer.data() + size, buffer.size() - size);
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  close(fd);
  return std::string_view(buffer.data(), size);
}

/// Returns whether an environment that was read as empty really is. Otherwise the process was within an exec,
/// where the old environment goes before the new one comes. A kernel thread has no memory, so no environment.
/// `tries`: how often it was read as empty before. A new environment also ends where it begins while the
/// kernel counts its variables, so one look does not tell.
bool has_no_environment(pid_t pid, std::span<char> buffer, int tries) {
  std::string_view rest = read_proc_file(pid, "stat", buffer).value_or("");
  rest.remove_prefix(std::min(rest.rfind(')'), rest.size()));
  const auto word = [&rest](int count) {  // the word that stands so many behind the last one
    for (; count > 0; --count)
      rest.remove_prefix(std::min(rest.find(' ', 1), rest.size()));
    return rest.substr(0, rest.find(' ', 1));
  };
  const std::string_view size = word(21);   // field 23 of proc(5): size of the memory
  const std::string_view begin = word(27);  // field 50: begin of the environment; 0: not there yet
  return size == " 0" || size.empty() || (tries >= kEmptyTries && begin != " 0" && begin == word(1));
}

/// Returns an empty text if there is none for us. Unset: the process was within an exec at each try.
std::optional<std::string_view> read_environment(pid_t pid, int fd, std::span<char> buffer) {
  for (int tries = 0; tries < kExecTries; ++tries) {
    const auto text = read_proc_file(pid, "environ", buffer);
    if (!text || !text->empty() || has_no_environment(pid, buffer, tries)) return text.value_or("");
    wait_for_end(fd, std::chrono::milliseconds(1));
  }
  return std::nullopt;
}

/// Sends the descriptor of a marked process along. False: the receiver is gone.
bool send_answer(int socket, int answer, int fd) {
  iovec bytes{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (answer > kUnmarked) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    std::copy_n(reinterpret_cast<const char*>(&fd), sizeof fd, CMSG_DATA(head));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof answer;
}

/// Receives one answer, and the descriptor that came with it. Returns what recvmsg returns.
ssize_t receive_answer(int socket, int& answer, UniqueFd& fd) {
  iovec bytes{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* head = size > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head != nullptr) {
    int received = -1;
    std::copy_n(CMSG_DATA(head), sizeof received, reinterpret_cast<unsigned char*>(&received));
    fd.reset(received);
  }
  return size;
}

/// The code of the child. Another thread of the parent may have held any lock, so only system calls are made.
/// All signals are blocked, because the parent's handlers must not run in the child.
[[noreturn]] void read_all(std::span<const pid_t> pids, std::string_view mark, std::span<char> buffer,
                           int answers, pid_t parent) {
  prctl(PR_SET_NAME, "ddp-mark-search", 0, 0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != parent) _exit(0);
  dup2(answers, 0);
  close_descriptors(1, ~0U);
  for (const pid_t pid : pids) {
    // Open the descriptor first, so that the environment belongs to its process.
    const UniqueFd fd = open_process(pid);
    int answer = kElsewhere;
    if (fd) {
      const auto environment = read_environment(pid, fd.get(), buffer);
      answer = !environment ? kUnread : environment->empty() ? kHidden : mark_in(*environment, mark);
      if (has_ended(fd.get())) answer = kElsewhere;
    }
    if (!send_answer(0, answer, fd.get())) _exit(0);
  }
  _exit(0);
}

}  // namespace

MarkSearch::MarkSearch(std::string_view job_id, std::vector<pid_t> pids)
    : mark_("DDPLAUNCH_JOB_ID=" + std::string(job_id)), pids_(std::move(pids)) {
  start_reader();
}

MarkSearch::~MarkSearch() {
  stop_reader();
}

/// Uses clone, not fork: code that reaps our children must not see a child without an exit signal.
void MarkSearch::start_reader() {
  int ends[2];
  if (is_over()) return;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kMaxEnvironment);
  stalled_at_ = Clock::now() + kStall;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return skip_to(pids_.size());
  answers_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t parent = getpid();
  reader_ = static_cast<pid_t>(syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL));
  if (reader_ == 0)
    read_all(std::span(pids_).subspan(next_), mark_, {buffer.get(), kMaxEnvironment}, write_end.get(),
             parent);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (reader_ < 0) skip_to(pids_.size());
}

void MarkSearch::skip_to(std::size_t next) {
  unproven_.insert(unproven_.end(), pids_.begin() + static_cast<std::ptrdiff_t>(next_),
                   pids_.begin() + static_cast<std::ptrdiff_t>(next));
  next_ = next;
  skipped_ = true;
}

void MarkSearch::stop_reader() {
  if (reader_ <= 0) return;
  kill(reader_, SIGKILL);  // only this object reaps the reader, so the number is still valid
  const auto until = Clock::now() + kDeathTime;
  while (waitpid(reader_, nullptr, WNOHANG | __WCLONE) == 0 && Clock::now() < until)
    poll(nullptr, 0, 1);
  reader_ = -1;
}

std::vector<MarkedProcess> MarkSearch::take_found() {
  std::vector<MarkedProcess> found;
  bool ended = false;
  while (!is_over()) {
    int answer = kUnmarked;
    UniqueFd fd;
    const ssize_t size = receive_answer(answers_.get(), answer, fd);
    if (size < 0 && errno == EINTR) continue;
    ended = size == 0;  // the reader was killed
    if (size <= 0) break;
    if (fd) found.push_back({pids_[next_], answer, std::move(fd)});
    skipped_ = skipped_ || answer == kUnread;
    if (answer <= kUnmarked && answer != kElsewhere) unproven_.push_back(pids_[next_]);
    ++next_;
    stalled_at_ = Clock::now() + kStall;
  }
  if (is_over() || (!ended && Clock::now() < stalled_at_)) return found;
  stop_reader();
  skip_to(next_ + 1);
  start_reader();
  return found;
}

void MarkSearch::wait(std::chrono::milliseconds limit) const {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(stalled_at_ - Clock::now());
  pollfd news{answers_.get(), POLLIN, 0};
  if (!is_over())
    poll(&news, 1, static_cast<int>(std::clamp(rest, std::chrono::milliseconds(0), limit).count()));
}

bool is_search_reader(pid_t child) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT | __WCLONE) == 0;
}

}  // namespace ddp::launcher
