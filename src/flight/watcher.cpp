// The watch thread; see watcher.h. diagnose.h decides, report.h has the words.
#include "hasten/flight/watcher.h"

#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "flight/proc.h"
#include "hasten/core/text.h"
#include "hasten/flight/page_notes.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/report.h"
#include "hasten/flight/stacks.h"
#include "hasten/flight/stragglers.h"
#include "hasten/flight/symbols.h"

namespace hasten::flight {
namespace {

constexpr int64_t kTickNs = 1'000'000'000;
constexpr double kFreshS = 3;           // a heartbeat of a rank that can look
constexpr double kAnswerS = 1.2;        // for the answers of the others
constexpr double kFastFileBytes = 1e6;  // a second, which is progress
constexpr double kLeastPatienceS = 60, kPatience = 10;
constexpr double kQuietS = 4;             // without any progress, which is looked into
constexpr double kCertainOverHostsS = 3;  // other hosts' ranks are seen two seconds late
constexpr double kHostsAnswerS = 4;       // for the answers of other hosts
constexpr int kTicksOfHosts = 2;
constexpr int64_t kPaceSteps = 50;
constexpr double kRepeatsS[] = {300, 1500};
constexpr const char* kDidItsLoopEnd = ". Did its loop end before the others' (join_uneven_inputs)?";
constexpr auto kFactsTime = std::chrono::milliseconds(60);

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t time_ns) {
  const timespec timeout{time_ns / 1'000'000'000, time_ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool standard_error_takes() {
  pollfd source{STDERR_FILENO, POLLOUT, 0};
  return poll(&source, 1, 0) == 1 && (source.revents & POLLOUT) != 0;
}

// In parts that a pipe takes whole, each only if it has room, so that no rank is held by a reader.
bool print(const std::string& words) {
  size_t done = 0;
  while (done < words.size()) {
    if (!standard_error_takes()) return done > 0;
    const ssize_t count = write(STDERR_FILENO, words.data() + done, std::min<size_t>(words.size() - done, PIPE_BUF));
    if (count <= 0) return done > 0;
    done += static_cast<size_t>(count);
  }
  return true;
}

void store(PageAnswer& answer, const std::string& words) {
  const size_t count = std::min<size_t>(words.size(), kFactsBytes);
  for (size_t i = 0; i < count; ++i) answer.facts[i].store(words[i], kRelaxed);
  answer.num_bytes.store(static_cast<uint32_t>(count), std::memory_order_release);
}

}  // namespace

struct Watcher::Impl {
  /// What was said about a standstill.
  struct Reported {
    std::string key = {};
    bool line = false;
    int boxes = 0;
  };

  Impl(std::shared_ptr<Recorder> recorder_, WatchOptions options_)
      : recorder(std::move(recorder_)), options(std::move(options_)), page(recorder->page()) {}

  void run() {
    prctl(PR_SET_NAME, "hasten-watch");
    tick();
    int64_t next = now_ns() + kTickNs;
    while (!stopping.load()) {
      const uint32_t ask = page.head.ask.load();
      if (ask != page.head.answered.load()) answer();
      const int64_t left = next - now_ns();
      if (left > 0) {
        if (page.head.ask.load() == ask) futex_wait(page.head.ask, ask, left);
        continue;
      }
      // Behind a stop of this process or a sleep of the machine nothing is known about the others.
      if (-left > static_cast<int64_t>(kFreshS * 1e9)) awake_ns = now_ns();
      next = now_ns() + kTickNs;
      tick();
    }
    // A run may be shorter than a second, and its ranks do not end together.
    if (standard_error_takes()) {
      find_others();
      report_values();
    }
  }

  void answer() {
    const uint32_t ask = page.head.ask.load();
    FactsBefore before;
    collect_facts(before);
    std::this_thread::sleep_for(kFactsTime);
    store(page.answer, write_facts(collect_facts(before)));
    take_stacks(page.answer);
    page.head.answered.store(ask, std::memory_order_release);
    futex_wake(page.head.answered);
  }

  void tick() {
    page.head.heartbeat_ns.store(now_ns(), kRelaxed);
    note_file_bytes();
    page.head.mute.store(standard_error_takes() ? 0 : 1, kRelaxed);
    if (page.head.mute.load(kRelaxed) != 0 || !is_looker()) return;
    note_bytes_of_announced();
    report_values();
    if (recorder->identity().world_size == 1) return;  // no rank waits for another
    hosts_of_run() ? look_at_hosts() : look();
  }

  // Bytes of files are progress where the rank waits for no other.
  void note_file_bytes() {
    const std::string io = read_text("/proc/self/io");
    const int64_t bytes = number_after(io, "rchar:") + number_after(io, "wchar:");
    const int64_t before = page.now.io_bytes.exchange(bytes, kRelaxed);
    const int64_t time = now_ns();
    const double seconds = static_cast<double>(time - std::exchange(io_time_ns, time)) / 1e9;
    if (before == 0 || static_cast<double>(bytes - before) < kFastFileBytes * seconds) return;
    const bool waits = std::any_of(page.records.begin(), page.records.end(), [](const PageRecord& record) {
      return record.waited_ns.load(kRelaxed) != 0 && record.ended_ns.load(kRelaxed) == 0;
    });
    if (!waits) recorder->alive();
  }

  // The launcher's pages are there before their workers take them.
  void find_others() {
    const auto taken = std::count_if(pages.begin(), pages.end(),
                                     [](const PageView& view) { return view.state() != PageState::kAnnounced; });
    if (taken >= recorder->identity().local_world_size) return;
    // Each second at first, each tenth one if a rank does not come.
    if (++scans > 60 && scans % 10 != 0) return;
    FoundPages found = find_pages();
    const std::lock_guard lock(pages_mutex);
    for (PageView& view : found.pages) {
      const bool known =
          std::any_of(pages.begin(), pages.end(), [&](const PageView& one) { return one.file() == view.file(); });
      if (!known && is_of_this_host(view)) pages.push_back(std::move(view));
    }
    drop_replaced();
    std::sort(pages.begin(), pages.end(),
              [](const PageView& a, const PageView& b) { return a.page().head.rank < b.page().head.rank; });
  }

  // On any thread. A rank that fails has words of its own, in the store.
  std::string words_of_ended() const {
    std::map<int, RankState> ranks;
    const auto add = [&](const PageView& view) { ranks.try_emplace(view.page().head.rank, view.read()); };
    {
      const std::lock_guard lock(pages_mutex);
      for (const PageView& view : pages) add(view);
    }
    for (const PageView& view : find_pages().pages) {
      if (is_of_this_host(view)) add(view);
    }
    std::vector<std::string> words;
    bool is_in_order = false;
    for (const auto& [number, rank] : ranks) {
      if (number == recorder->identity().rank || rank.state == PageState::kFailed) continue;
      if (rank.state != PageState::kLeft && rank.life != Life::kEnded) continue;
      is_in_order = is_in_order || rank.state == PageState::kLeft;
      words.push_back(text("rank ", number, ' ', why(rank)));
    }
    return join(words, "; ") + (is_in_order ? kDidItsLoopEnd : "");
  }

  bool is_of_this_host(const PageView& view) const {
    const PageHead& head = view.page().head;
    const std::string run(head.run, strnlen(head.run, sizeof head.run));
    return run == recorder->identity().run && head.node_rank == recorder->identity().node_rank;
  }

  // A rank that could not take the launcher's page has made one of its own.
  void drop_replaced() {
    std::set<int> taken;
    for (const PageView& view : pages) {
      if (view.state() != PageState::kAnnounced) taken.insert(view.page().head.rank);
    }
    std::erase_if(pages, [&](const PageView& view) {
      return view.state() == PageState::kAnnounced && taken.contains(view.page().head.rank);
    });
  }

  // A program that reads a large file before its Process has no watch thread that would say so.
  void note_bytes_of_announced() {
    for (const PageView& view : pages) {
      if (view.state() != PageState::kAnnounced) continue;
      const std::string io = read_text(text("/proc/", view.pid(), "/io"));
      const int64_t bytes = number_after(io, "rchar:") + number_after(io, "wchar:");
      const int64_t before = view.page().now.io_bytes.exchange(bytes, kRelaxed);
      if (static_cast<double>(bytes - before) >= kFastFileBytes) view.page().now.progress_ns.store(now_ns(), kRelaxed);
    }
  }

  bool is_looker() {
    find_others();
    for (const PageView& view : pages) {
      if (view.page().head.rank == recorder->identity().rank) return true;
      if (view.heartbeat_s() < kFreshS && view.page().head.mute.load(kRelaxed) == 0) return false;
    }
    return true;
  }

  bool is_suspicious() const {
    double least_progress = 1e300;
    for (const PageView& view : pages) {
      if (view.longest_wait_s() >= options.limits.certain_after_s) return true;
      least_progress = std::min(least_progress, view.progress_s());
    }
    return !pages.empty() && least_progress > kQuietS;
  }

  static bool is_suspicious(const Snapshot& snapshot) {
    double least_progress = 1e300;
    for (const RankState& rank : snapshot.ranks) {
      for (const CallState& call : rank.calls) {
        if (!call.ended && call.waits_s.value_or(0) >= kCertainOverHostsS) return true;
      }
      least_progress = std::min(least_progress, rank.progress_s);
    }
    return least_progress > kQuietS;
  }

  Snapshot take_snapshot() const {
    Snapshot snapshot{.world_size = recorder->identity().world_size};
    for (const PageView& view : pages) snapshot.ranks.push_back(view.read());
    return snapshot;
  }

  // A line for all ranks, once until their values are finite again.
  void report_values() {
    std::vector<const PageView*> news;
    std::vector<std::string> words;
    bool is_reported = false;
    for (const PageView& view : pages) {
      is_reported = is_reported || has_reported_value(view.page());
      const auto value = unreported_value(view.page());
      if (!value) continue;
      news.push_back(&view);
      words.push_back(text("rank ", view.page().head.rank, ": ", value->name, " in step ", value->step, " of epoch ",
                           value->epoch, value->batch > 0 ? text(", batch ", value->batch) : ""));
    }
    if (news.empty()) return;
    if (!is_reported && !report(text("hasten: values are not finite; ", join(words, "; "), '\n'))) return;
    for (const PageView* view : news) note_value_reported(view->page());
  }

  // Once for each rank and cause. True if a window has ended.
  bool report_straggler(const Snapshot& snapshot) {
    if (!stragglers.add(snapshot)) return false;
    const auto found = stragglers.find();
    if (!found) return true;
    const std::string key = text(found->rank, ' ', found->cause);
    if (straggler_reported.contains(key)) return true;
    if (report(text("hasten: ", describe(*found), '\n'))) straggler_reported.insert(key);
    return true;
  }

  void look() {
    // Steps are read each second, all values only if enough of them were made.
    int64_t least = INT64_MAX;
    for (const PageView& view : pages) least = std::min(least, view.step());
    const bool anew = straggler_step < 0 || least < straggler_step;
    if (anew || least >= straggler_step + kPaceSteps) {
      if (report_straggler(take_snapshot()) || anew) straggler_step = least;
    }
    if (is_suspicious()) {
      judge(take_snapshot());
    } else {
      reported = {};
    }
  }

  void judge(Snapshot snapshot) {
    HangLimits limits = options.limits;
    if (hosts) limits.certain_after_s = std::max(limits.certain_after_s, kCertainOverHostsS);
    const double limit = hang_after_s(snapshot, limits);
    if (awake_ns != 0 && static_cast<double>(now_ns() - awake_ns) / 1e9 < limit) return;
    auto found = diagnose(snapshot, limits);
    if (!found) return;
    if (found->key() != reported.key) reported = {.key = found->key()};
    if (found->for_s < due_s(limit)) return;
    snapshot = ask_about(hosts != nullptr);
    found = diagnose(snapshot, limits);
    if (!found || found->key() != reported.key) return;
    if (found->computes && !reported.line) {
      reported.line = report(hang_line(snapshot, *found));
      return;
    }
    if (found->computes && found->for_s < patience_s(limit)) return;
    if (!report(hang_report(snapshot, *found))) return;
    if (reported.boxes++ == 0 && options.kill) kill_culprit(snapshot, *found);
  }

  // Made by the first look, on this thread. False in a run of one host, and once the way to the others is lost.
  bool hosts_of_run() {
    const PageIdentity& own = recorder->identity();
    if (!hosts && options.connect_hosts && own.local_world_size < own.world_size && !hosts_lost) {
      with_hosts([&] { hosts = std::make_unique<Hosts>(options.connect_hosts(), own.node_rank, own.world_size); });
    }
    return hosts != nullptr;
  }

  // A store that has died is not touched again.
  template <class Fn>
  void with_hosts(const Fn& fn) {
    try {
      fn();
    } catch (const std::exception&) {
      hosts_lost = true;
      hosts.reset();
    }
  }

  void look_at_hosts() {
    with_hosts([&] {
      if (const auto rank = hosts->rank_to_kill()) kill_rank(*rank);
      // The answer stays until the next tick, so that it is seen.
      if (const auto question = hosts->question()) return hosts->tell(ask_about(false), *question);
      if (++host_ticks % kTicksOfHosts != 0) return;
      const Snapshot local = take_snapshot();
      hosts->tell(local);
      if (!hosts->compares(clock_s())) return;
      const Snapshot all = hosts->merge(local, clock_s());
      report_straggler(all);
      if (is_suspicious(all)) {
        judge(all);
      } else {
        reported = {};
      }
    });
  }

  static double clock_s() { return static_cast<double>(now_ns()) / 1e9; }

  void wait_for_hosts(int64_t question) {
    const double deadline = clock_s() + kHostsAnswerS;
    while (clock_s() < deadline && !hosts->all_answered(question, clock_s())) {
      page.head.heartbeat_ns.store(now_ns(), kRelaxed);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  static double patience_s(double limit) { return std::max(kLeastPatienceS, kPatience * limit); }

  double due_s(double limit) const {
    if (reported.boxes == 0) return reported.line ? patience_s(limit) : 0;
    return reported.boxes <= 2 ? kRepeatsS[reported.boxes - 1] : 1e300;
  }

  /// Returns the ranks with facts and stacks of those that run, of this host or of all.
  Snapshot ask_about(bool all_hosts) {
    const int64_t question = all_hosts ? hosts->ask() : 0;
    std::vector<const PageView*> others;
    for (const PageView& view : pages) {
      if (view.page().head.rank != recorder->identity().rank) others.push_back(&view);
    }
    std::vector<FactsBefore> before(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) (void)collect_facts_of(pages[i].pid(), before[i]);
    ask_all(others, kAnswerS);
    page.head.ask.fetch_add(1);
    answer();
    Snapshot snapshot = take_snapshot();
    for (size_t i = 0; i < pages.size(); ++i) {
      RankState& rank = snapshot.ranks[i];
      if (rank.life != Life::kRunning || rank.state == PageState::kAnnounced) continue;
      if (!pages[i].has_answered()) {  // its watch thread may get as little time as the others
        rank.facts = collect_facts_of(rank.pid, before[i]);
        continue;
      }
      rank.facts = pages[i].facts();
      for (const StackState& stack : pages[i].stacks()) {
        if (stack.thread != rank.pid) continue;
        StackWords named = name_stack(rank.pid, stack);
        rank.stack = std::move(named.text);
        note_device_wait(*rank.facts, named.device_wait);
      }
    }
    if (!all_hosts) return snapshot;
    wait_for_hosts(question);
    return hosts->merge(snapshot, clock_s());
  }

  // Tells more than the system call of the main thread.
  static void note_device_wait(Facts& facts, const std::string& device_wait) {
    for (ThreadFacts& thread : facts.threads) {
      if (thread.thread == facts.pid && !device_wait.empty()) thread.doing = "waits for " + device_wait;
    }
  }

  bool report(const std::string& words) {
    if (!print(words)) {
      page.head.mute.store(1, kRelaxed);
      return false;
    }
    if (options.on_report) options.on_report(words);
    return true;
  }

  void kill_culprit(const Snapshot& snapshot, const Diagnosis& found) {
    const int culprit = !found.culprits.empty() ? found.culprits[0] : found.waiting.empty() ? -1 : found.waiting[0];
    for (const RankState& rank : snapshot.ranks) {
      if (rank.rank != culprit || rank.life == Life::kEnded || rank.life == Life::kSilent) continue;
      if (is_kept_short(rank)) continue;
      if (!kill_rank(culprit) && hosts) hosts->ask_to_kill(culprit);
    }
  }

  // False if it is not on this host.
  bool kill_rank(int rank) const {
    for (const PageView& view : pages) {
      if (view.page().head.rank != rank || view.pid() <= 1) continue;
      if (view.read().life != Life::kEnded) {
        note_end_by_watch(view.page());
        ::kill(view.pid(), SIGKILL);
      }
      return true;
    }
    return false;
  }

  const std::shared_ptr<Recorder> recorder;
  const WatchOptions options;
  Page& page;
  std::atomic<bool> stopping{false};
  mutable std::mutex pages_mutex;  // other threads read the list, this one changes it
  std::vector<PageView> pages;     // of this host's ranks, by rank
  int scans = 0;
  int64_t io_time_ns = now_ns();
  int64_t awake_ns = 0;
  Reported reported;
  StragglerWatch stragglers{kPaceSteps};
  int64_t straggler_step = -1;
  std::set<std::string> straggler_reported;
  std::unique_ptr<Hosts> hosts;
  bool hosts_lost = false;
  int host_ticks = 0;
  const pid_t owner = getpid();
  std::thread thread;
};

Watcher::Watcher(std::shared_ptr<Recorder> recorder, WatchOptions options)
    : impl_(std::make_unique<Impl>(std::move(recorder), std::move(options))) {
  install_stack_handler(impl_->options.stack_signal);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  impl_->recorder->set_words_of_ended([impl = impl_.get()] { return impl->words_of_ended(); });
}

Watcher::~Watcher() {
  if (getpid() != impl_->owner) {
    (void)impl_.release();  // a child of fork() has no such thread
    return;
  }
  impl_->recorder->set_words_of_ended({});
  impl_->stopping.store(true);
  impl_->page.head.ask.fetch_add(1);
  futex_wake(impl_->page.head.ask);
  impl_->thread.join();
}

}  // namespace hasten::flight
