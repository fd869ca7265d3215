#include "thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <torch/library.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <semaphore>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

// How long a thread waits awake. The next kernel of a step usually comes sooner, and to wake a thread takes as long.
constexpr auto AWAKE = std::chrono::microseconds(100);

constexpr uint32_t OPEN = 1u << 31, CALLER_SLEEPS = 1u << 30, INSIDE = CALLER_SLEEPS - 1;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word, int threads) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// Waits awake until `done()`, but not for long. Returns whether it is done.
template <class Done>
bool wait_awake(const Done& done) {
  constexpr int PAUSES = 32;  // To read the clock takes as long as a few pauses.
  for (const auto until = Clock::now() + AWAKE; !done();) {
    for (int i = 0; i < PAUSES && !done(); ++i) _mm_pause();
    if (Clock::now() > until) return done();
  }
  return true;
}

// Blocks all signals for this thread, and for those that it starts, until it is destroyed.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// The thread-local variables of this library are one block, which the C library allocates when a thread first uses one of
// them. It ends the process if there is no memory then, so helpers do it when they start.
thread_local volatile char first_used;

}  // namespace

ThreadPool& ThreadPool::instance() {
  // It is never destroyed, as its helpers may outlive static objects.
  static ThreadPool& pool = *new ThreadPool;
  return pool;
}

ThreadPool::ThreadPool() : threads_(std::max<int64_t>(1, std::thread::hardware_concurrency())) {}

void ThreadPool::set_threads(int64_t threads) {
  TORCH_CHECK(threads >= 1, "the number of threads is ", threads, ", not at least 1");
  const std::lock_guard lock(mutex_);
  threads_ = threads;
  started_ = 0;
  team_.fetch_add(1);
  jobs_.fetch_add(1);
  wake(jobs_, INT_MAX);
}

void ThreadPool::run(int64_t count, Call call, const void* context) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (count <= 1 || threads() == 1 || !lock.try_lock()) {
    Tasks alone;
    alone.reset(count, 1);
    return call(context, alone);
  }
  open(count, call, context);
  work();
  close();
  if (failed_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::open(int64_t count, Call call, const void* context) {
  for (; started_ < threads() - 1; ++started_) {
    const BlockedSignals blocked;  // Signals are for the threads of Python.
    std::binary_semaphore is_ready{0};
    std::thread([this, &is_ready, team = team_.load()] {
      first_used = 1;
      is_ready.release();
      help(team);
    }).detach();
    is_ready.acquire();
  }
  call_ = call;
  context_ = context;
  failed_ = false;
  tasks_.reset(count, threads());
  gate_.store(OPEN, std::memory_order_release);
  jobs_.fetch_add(1);
  if (const int32_t sleeping = sleeping_.load(); sleeping > 0) wake(jobs_, (int)std::min<int64_t>(sleeping, count - 1));
}

// Waits until all helpers have left the job.
void ThreadPool::close() {
  if (!(gate_.fetch_and(~OPEN, std::memory_order_acquire) & INSIDE)) return;
  const auto all_left = [this] { return !(gate_.load(std::memory_order_acquire) & INSIDE); };
  if (wait_awake(all_left)) return;
  gate_.fetch_or(CALLER_SLEEPS);
  while (!all_left()) {
    if (const uint32_t gate = gate_.load(); gate & INSIDE) sleep_while(gate_, gate);
  }
}

// What a helper does until its team ends.
void ThreadPool::help(int64_t team) {
  pthread_setname_np(pthread_self(), "inflight-kernel");
  while (true) {
    const uint32_t seen = jobs_.load();
    if (team_.load() != team) return;
    if (enter()) {
      work();
      leave();
      continue;
    }
    const auto job_came = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
    if (wait_awake(job_came)) continue;
    sleeping_.fetch_add(1);
    if (!job_came()) sleep_while(jobs_, seen);
    sleeping_.fetch_sub(1);
  }
}

// Enters the job, if there is one with tasks left.
bool ThreadPool::enter() {
  uint32_t gate = gate_.load(std::memory_order_acquire);
  while (gate & OPEN && tasks_.any_left())
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
  return false;
}

void ThreadPool::work() noexcept {
  try {
    call_(context_, tasks_);
  } catch (...) {
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }
}

void ThreadPool::leave() {
  const uint32_t before = gate_.fetch_sub(1, std::memory_order_release);
  if (before & CALLER_SLEEPS && (before & INSIDE) == 1) wake(gate_, 1);
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("set_num_threads(int threads) -> ()", [](int64_t threads) { ThreadPool::instance().set_threads(threads); });
}
