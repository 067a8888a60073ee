// A run that is killed at any point has its last complete checkpoint: real processes, kill -9 of a rank while they
// save.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <thread>

#include "hasten/accelerator.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/retention.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/processes.h"

namespace hasten {
namespace {

// Trains and saves for ever, in the background, with two checkpoints kept; says which are complete.
HASTEN_PROCESS_CASE(saves_until_it_is_killed) {
  torch::set_num_threads(1);
  AcceleratorOptions options{.tune_allocator = false};
  options.project = {.project_dir = *Environment::current().text("TEST_FOLDER"),
                     .automatic_checkpoint_naming = true,
                     .total_limit = 2};
  Accelerator accelerator(options);
  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 64));
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto resumed = accelerator.resume();
  // Every parameter was made equal to the step, so that a mixture of two checkpoints shows.
  if (resumed) {
    for (const auto& parameter : net->parameters()) {
      if (!parameter.eq(static_cast<double>(resumed->step)).all().item<bool>()) {
        std::cout << "a mixture at step " << resumed->step << std::endl;
        return 1;
      }
    }
  }
  std::cout << "resumed " << (resumed ? resumed->step : -1) << " pid " << ::getpid() << std::endl;
  for (int64_t step = resumed ? resumed->step + 1 : 1;; ++step) {
    accelerator.backward(model(torch::ones({4, 64})).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.fill_(static_cast<double>(step));
    }
    const auto save = accelerator.save_state();
    if (step % 3 == 0) {
      save.wait();
      if (accelerator.is_main_process()) std::cout << "complete " << step << std::endl;
    }
  }
}

int64_t last_number(const std::string& output, const std::string& before) {
  const auto at = output.rfind(before);
  return at == std::string::npos ? -1 : std::stoll(output.substr(at + before.size()));
}

class CheckpointCrash : public testing::InFolder {
 protected:
  // The seed is printed, so that a run can be repeated.
  static std::mt19937 seeded() {
    const auto seed = std::random_device()();
    std::cout << "seed " << seed << std::endl;
    return std::mt19937(seed);
  }

  // `output` is of the run that was killed last: it resumed from the newest checkpoint that was complete before, and
  // each checkpoint that lies there is whole.
  void expect_nothing_lost(const std::string& output) {
    EXPECT_THAT(output, ::testing::Not(::testing::HasSubstr("mixture")));
    const int64_t resumed = last_number(output, "resumed ");
    EXPECT_GE(resumed, durable_) << "a complete checkpoint was lost";
    durable_ = std::max({durable_, resumed, last_number(output, "complete ")});
    int complete = 0;
    for (const auto& found : files::find_checkpoints((folder_ / "checkpoints").string())) {
      EXPECT_EQ(found.problem, "") << found.path;
      EXPECT_TRUE(files::verify_folder(found.path).errors.empty()) << found.path;
      ++complete;
    }
    EXPECT_TRUE(durable_ < 0 || complete >= 1);
  }

  int64_t durable_ = -1;
};

TEST_F(CheckpointCrash, KilledRanksLoseNoCheckpoint) {
  const int64_t kills = 6 * Environment::current().integer("HASTEN_TEST_SCALE", 1).value_or(1);
  std::mt19937 random = seeded();
  for (int64_t kill = 0; kill < kills; ++kill) {
    testing::Processes run(2, "saves_until_it_is_killed", {{"TEST_FOLDER", folder_}, {"OMP_NUM_THREADS", "1"}});
    ASSERT_TRUE(run.wait_for_output(0, "resumed")) << "kill " << kill;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
    const int first = static_cast<int>(random() % 2);
    run.signal(first, SIGKILL);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    run.signal(1 - first, SIGKILL);
    const auto results = run.wait();

    expect_nothing_lost(results[0].output);
  }
}

// `hasten launch` of this program, with its output in a file.
class Launch {
 public:
  Launch(const std::string& case_name, const std::string& folder, std::string output) : output_(std::move(output)) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const std::string command = (program.parent_path().parent_path() / "bin" / "hasten").string();
    std::vector<std::string> words{command, "launch", "--cpu", "--num_processes", "2", "--no_python", program.string()};
    std::vector<std::string> environment{"HASTEN_TEST_CASE=" + case_name, "TEST_FOLDER=" + folder, "OMP_NUM_THREADS=1"};
    for (char** each = environ; *each != nullptr; ++each) environment.emplace_back(*each);
    const auto pointers = [](std::vector<std::string>& all) {
      std::vector<char*> out;
      for (auto& each : all) out.push_back(each.data());
      out.push_back(nullptr);
      return out;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    EXPECT_EQ(
        posix_spawn(&pid_, command.c_str(), &actions, nullptr, pointers(words).data(), pointers(environment).data()), 0)
        << command;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Launch() { kill(); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  std::string output() const {
    std::ifstream in(output_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool wait_for_output(const std::string& words, size_t times) const {
    return eventually([&] {
      const std::string text = output();
      size_t count = 0;
      for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
      return count >= times;
    });
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Workers end by themselves once their launcher is gone.
  bool workers_are_gone() const {
    std::vector<pid_t> workers;
    const std::string text = output();
    for (size_t at = text.find(" pid "); at != std::string::npos; at = text.find(" pid ", at + 1))
      workers.push_back(std::stoi(text.substr(at + 5)));
    return eventually(
        [&] { return std::all_of(workers.begin(), workers.end(), [](pid_t pid) { return ::kill(pid, 0) != 0; }); });
  }

 private:
  static bool eventually(const std::function<bool()>& holds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }
  std::string output_;
  pid_t pid_ = -1;
};

TEST_F(CheckpointCrash, KilledLaunchersLoseNoCheckpoint) {
  const int64_t kills = 2 * Environment::current().integer("HASTEN_TEST_SCALE", 1).value_or(1);
  std::mt19937 random = seeded();
  for (int64_t kill = 0; kill < kills; ++kill) {
    Launch run("saves_until_it_is_killed", folder_.string(), path("output"));
    ASSERT_TRUE(run.wait_for_output("resumed", 2)) << "kill " << kill << "\n" << run.output();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
    run.kill();
    ASSERT_TRUE(run.workers_are_gone()) << run.output();

    expect_nothing_lost(run.output());
  }
}

// A program that ends while a save is under way waits for it.
HASTEN_PROCESS_CASE(ends_while_it_saves) {
  AcceleratorOptions options{.tune_allocator = false};
  options.project = {.project_dir = *Environment::current().text("TEST_FOLDER"), .automatic_checkpoint_naming = true};
  Accelerator accelerator(options);
  torch::nn::Linear net(512, 512);
  auto model = accelerator.prepare(net);
  accelerator.save_state();
  return 0;
}

TEST_F(CheckpointCrash, AProgramThatEndsFinishesItsSave) {
  const auto results = testing::run_processes(2, "ends_while_it_saves", {{"TEST_FOLDER", folder_}});

  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(files::verify_folder(path("checkpoints/checkpoint_0")).errors.empty());
}

}  // namespace
}  // namespace hasten
