// Shares the work of a kernel between the calling thread and helper threads.
//
// OpenMP ends a parallel region when all its threads have been there. On a processor that other programs use as well, each
// region then waits for a thread that has lost its core. Here, the caller takes tasks like everyone, and waits only for
// helpers that are at work. A helper without a core costs its share of the speed, and no more.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>

// The tasks of a job, from 0 to `count` - 1. Threads take them in order, when they are free.
class Tasks {
 public:
  // Takes a task. Returns `count` if none is left.
  int64_t operator()() { return std::min<int64_t>(next_.fetch_add(1, std::memory_order_relaxed), count_); }

  // Calls `work(task, next)` for task after task until none is left. `next` is the task that this thread computes
  // afterwards, so that it can fetch its data in time, or -1.
  template <class Work>
  void each_with_next(const Work& work) {
    for (Range now = some(), next; now.first < now.last; now = next) {
      next = some();
      for (int64_t task = now.first; task < now.last; ++task)
        work(task, task + 1 < now.last ? task + 1 : next.first < next.last ? next.first : -1);
    }
  }

 private:
  friend class ThreadPool;
  static constexpr int64_t MOST = 16;

  struct Range {
    int64_t first, last;
  };

  // Takes neighbouring tasks: many at first, then fewer, so that the threads finish together (guided self-scheduling,
  // Polychronopoulos and Kuck, 1987). The range is empty if no task is left.
  Range some() {
    const int64_t left = count_ - next_.load(std::memory_order_relaxed);
    const int64_t most = std::clamp<int64_t>(left / (2 * threads_), 1, MOST);
    const int64_t first = std::min<int64_t>(next_.fetch_add(most, std::memory_order_relaxed), count_);
    return {first, std::min<int64_t>(first + most, count_)};
  }

  void reset(int64_t count, int64_t threads) {
    count_ = count;
    threads_ = threads;
    next_.store(0, std::memory_order_relaxed);
  }
  bool any_left() const { return next_.load(std::memory_order_relaxed) < count_.load(std::memory_order_relaxed); }

  std::atomic<int64_t> next_{0}, count_{0};
  int64_t threads_ = 1;
};

// The threads that compute the kernels of this process. One thread at a time has the helpers; if a second one calls
// meanwhile, it computes alone.
class ThreadPool {
 public:
  static ThreadPool& instance();

  // The number of threads that compute a job, including the caller.
  int64_t threads() const { return threads_.load(std::memory_order_relaxed); }
  void set_threads(int64_t threads);

  // Calls `work(tasks)` in the calling thread and in helpers that are free, until all tasks are done.
  template <class Work>
  void run(int64_t count, const Work& work) {
    run(count, [](const void* context, Tasks& tasks) { (*static_cast<const Work*>(context))(tasks); }, &work);
  }

 private:
  using Call = void (*)(const void* context, Tasks& tasks);

  ThreadPool();
  void run(int64_t count, Call call, const void* context);
  void open(int64_t count, Call call, const void* context);
  void close();
  void help(int64_t team);
  bool enter();
  void work() noexcept;
  void leave();

  std::mutex mutex_;  // Held by the thread that has the helpers.
  std::atomic<int64_t> threads_;
  std::atomic<int64_t> team_{0};  // The helpers of earlier teams end.
  int64_t started_ = 0;           // The number of helpers in this team.
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  // What all threads read when a job begins is in one line of the cache. `call_` and `context_` do not change while a helper
  // is inside.
  alignas(64) std::atomic<uint32_t> jobs_{0};  // How many jobs there have been.
  // Whether helpers may enter the job, whether the caller sleeps until all have left, and how many are inside.
  std::atomic<uint32_t> gate_{0};
  std::atomic<int32_t> sleeping_{0};  // The number of helpers that sleep until `jobs_` changes.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  alignas(64) Tasks tasks_;
};

// Calls `work(tasks)` on several threads. A thread takes tasks when it is free, so a thread that another process delays gets
// fewer of them.
template <class Work>
void share_out(int64_t count, const Work& work) {
  ThreadPool::instance().run(count, work);
}

// Calls `work(first, last)` for parts of the rows 0 to `count` - 1. Parts have at least `least` rows, so few rows are
// computed by the caller alone.
template <class Work>
void share_out_rows(int64_t count, int64_t least, const Work& work) {
  const int64_t threads = ThreadPool::instance().threads();
  const int64_t part = std::max(least, (count + 4 * threads - 1) / (4 * threads));
  if (count <= part) {
    if (count > 0) work(0, count);
    return;
  }
  share_out((count + part - 1) / part, [&](Tasks& tasks) {
    for (int64_t first = tasks() * part; first < count; first = tasks() * part) work(first, std::min(first + part, count));
  });
}
