#include "remote/ssh/ssh_threads.h"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace ddp::remote {

struct SshThreads::Worker {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::vector<std::weak_ptr<SshSession>> sessions;  ///< sessions on this thread
  std::thread thread;
};

SshThreads::SshThreads(unsigned count) {
  for (unsigned i = 0; i < count + 1; ++i)
    workers_.push_back(std::make_unique<Worker>());
}

void SshThreads::run(Worker& worker) {
  if (worker.thread.joinable()) return;
  // Signals belong to the loop: the new thread inherits a mask that blocks all of them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  worker.thread = std::thread([&worker] { worker.io.run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SshThreads::~SshThreads() {
  for (const auto& worker : workers_) {
    asio::post(worker->io, [&worker = *worker] {
      for (const auto& weak : worker.sessions) {
        if (const auto session = weak.lock()) session->close();
      }
      worker.io.stop();
    });
  }
  // A session that waits for an ssh-agent was cut off by its own thread. The ssh-agents' thread, which is
  // last, ends as well.
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  // Destroy the ssh-agents' loop first: its queue may hold the last reference to a session of another loop.
  while (!workers_.empty())
    workers_.pop_back();
}

std::weak_ptr<SshSession> SshThreads::start(SshTarget target, SshSession::SshSessionEvents events) {
  const std::size_t index = next_++ % (workers_.size() - 1);
  Worker& worker = *workers_[index];
  run(worker);
  if (!target.agent_socket.empty()) run(*workers_.back());
  auto session =
      std::make_shared<SshSession>(worker.io, workers_.back()->io, std::move(target), std::move(events));
  session->set_home(index);
  std::weak_ptr<SshSession> weak = session;
  asio::post(worker.io, [&worker, session = std::move(session)] {
    std::erase_if(worker.sessions, [](const std::weak_ptr<SshSession>& one) { return one.expired(); });
    worker.sessions.push_back(session);
    session->start();
  });
  return weak;
}

void SshThreads::close(std::shared_ptr<SshSession> session, SshSession::HangUp hang_up) {
  if (!session) return;
  asio::io_context& home = workers_[session->home()]->io;
  asio::post(home, [session = std::move(session), hang_up] { session->close(hang_up); });
}

}  // namespace ddp::remote
