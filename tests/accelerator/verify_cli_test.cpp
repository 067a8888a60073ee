// hasten verify from end to end: a program with one mistake in it, and the words that name the mistake.
//
// The program is a case of this test program (support/processes.h); VERIFY_MISTAKE names what it does wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <random>

#include "cli/command.h"
#include "hasten/accelerator.h"
#include "hasten/core/env.h"
#include "hasten/data/dataset/map.h"
#include "hasten/optim/schedulers/decay.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "support/folder.h"
#include "support/processes.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("drop", drop);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_plain) return head(torch::relu(conv(x)).flatten(1));
    if (is_tied) return head(torch::relu(norm(conv(x))).flatten(1)) + head(torch::tanh(conv(x)).flatten(1));
    return head(drop(torch::relu(norm(conv(x))).flatten(1)));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 3, 3)};
  torch::nn::BatchNorm2d norm{3};
  torch::nn::Dropout drop{0.2};
  torch::nn::Linear head{3 * 4 * 4, 4};
  /// Rows do not depend on each other.
  bool is_plain = false;
  /// The head has a second name.
  bool is_tied = false;
};
TORCH_MODULE(Net);

/// Pictures with noise from a generator of its own, or from the default one.
struct Pictures : torch::data::Dataset<Pictures> {
  explicit Pictures(bool draws, size_t first = 0) : draws_(draws), first_(first) {}
  torch::data::Example<> get(size_t index) override {
    const auto first = static_cast<double>(index + first_);
    at::Tensor picture = torch::sin(torch::arange(36, torch::kFloat).view({1, 6, 6}) * (0.1 + 0.03 * first));
    if (draws_) picture = picture + 0.1 * torch::randn({1, 6, 6});
    return {picture, torch::tensor(static_cast<int64_t>(index % 4))};
  }
  torch::optional<size_t> size() const override { return 36; }
  bool draws_;
  size_t first_;
};

/// Grows the parameters behind each step.
class GrowingSgd : public torch::optim::SGD {
 public:
  GrowingSgd(const std::vector<at::Tensor>& parameters, const torch::optim::SGDOptions& options, double growth)
      : SGD(parameters, options), growth_(growth) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    const at::Tensor loss = SGD::step(std::move(closure));
    const torch::NoGradGuard no_grad;
    for (const auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) parameter.mul_(1 + growth_);
    }
    return loss;
  }

 private:
  double growth_;
};

/// Gives each rank another order.
class OrderOfRank : public torch::data::samplers::Sampler<> {
 public:
  explicit OrderOfRank(size_t rank) : rank_(rank) {}
  void reset(torch::optional<size_t> = torch::nullopt) override { next_ = 0; }
  torch::optional<std::vector<size_t>> next(size_t count) override {
    if (next_ >= 36) return torch::nullopt;
    std::vector<size_t> batch;
    for (; batch.size() < count && next_ < 36; ++next_) batch.push_back((next_ * 5 + rank_ * 7) % 36);
    return batch;
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  size_t size() const { return 36; }

 private:
  size_t rank_, next_ = 0;
};

class Program {
 public:
  explicit Program(std::string mistake) : mistake_(std::move(mistake)) {}

  int run() {
    torch::manual_seed(has("unseeded") ? std::random_device{}() : 5);
    AcceleratorOptions options;
    options.gradient_accumulation_steps = has("accumulates") ? 2 : 1;
    options.ddp.average = !has("adds_gradients");
    if (has("divides_model")) options.parallel.tp = 2;
    Accelerator accelerator(options);
    // Another part of the whole in each run, as random_split without a seed gives.
    const size_t first = has("splits") ? std::random_device{}() % 1000 : 0;
    const Pictures pictures(has("draws_in_dataset"), first);
    const auto num_processes = static_cast<size_t>(accelerator.num_processes());
    const size_t batch_size = has("batch_by_processes") ? 8 / num_processes : 4;
    if (has("fails_on_several") && num_processes > 1) throw std::runtime_error("no more than one");
    const auto mapped = [&] { return data::map(pictures, torch::data::transforms::Stack<>()); };
    if (has("own_order")) {
      loop(accelerator, accelerator.prepare(
                            data::loader(mapped(), OrderOfRank(static_cast<size_t>(accelerator.rank())), batch_size)));
    } else if (has("loader_not_prepared")) {
      loop(accelerator, data::loader<torch::data::samplers::SequentialSampler>(mapped(), batch_size));
    } else {
      loop(accelerator, accelerator.prepare(data::loader(mapped(), batch_size)));
    }
    return 0;
  }

 private:
  bool has(const std::string& mistake) const { return mistake_.find(mistake) != std::string::npos; }

  at::Tensor loss_of(const Accelerator& accelerator, const at::Tensor& output, const at::Tensor& target) const {
    const auto each = torch::nn::functional::cross_entropy(
        output, target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    // Samples of class 0 do not count, as padding would not.
    if (has("counts_tokens")) return (each * target.ne(0)).sum() / target.ne(0).sum();
    if (has("adds_losses")) return each.sum();
    if (has("divides_loss")) return each.mean() / accelerator.num_processes();
    return each.mean();
  }

  template <class Loader>
  void loop(const Accelerator& accelerator, Loader loader) {
    Net net;
    net->is_plain = has("plain");
    net->is_tied = has("ties");
    if (has("ties")) net->register_module("twin", net->head);
    torch::nn::Linear extra(4, 4);
    if (has("sync_batch_norm")) parallel::convert_sync_batchnorm(*net, accelerator.group());
    auto parameters = net->parameters();
    if (has("module_not_prepared")) {
      for (const auto& parameter : extra->parameters()) parameters.push_back(parameter);
    }
    add_hooks(accelerator, *net);
    torch::optim::SGD second(net->head->parameters(), 0.1);
    if (has("second_not_prepared")) parameters = net->conv->parameters();
    const double rate = has("scales_rate") ? 0.1 * accelerator.num_processes() : 0.1;
    const int others = accelerator.num_processes() - 1;
    const auto options = torch::optim::SGDOptions(rate).momentum(0.9);
    // A class of the program's own does not step parts of parameters.
    std::unique_ptr<torch::optim::SGD> made = std::make_unique<torch::optim::SGD>(parameters, options);
    if (has("grows")) made = std::make_unique<GrowingSgd>(parameters, options, 0.1 * others);
    torch::optim::SGD& sgd = *made;
    auto model = accelerator.prepare(net);
    auto optimizer = accelerator.prepare(sgd);
    optim::StepLR decay(sgd, {.step_size = has("decays_by_processes") && others > 0 ? 2 : 3, .gamma = 0.5});
    auto scheduler = accelerator.prepare(decay);
    const int num_epochs = has("epochs_by_processes") ? 2 / accelerator.num_processes() : 2;
    for (int epoch = 0; epoch < num_epochs; ++epoch) {
      int64_t step = 0;
      for (auto& batch : loader) {
        const auto scope = accelerator.accumulate(model);
        if (!has("zeroes_itself")) optimizer.zero_grad();
        if (has("zeroes_itself")) net->zero_grad();
        at::Tensor output = model(batch.data);
        if (has("branches") && accelerator.is_main_process()) output = output * 2;
        if (has("multiplies_output")) output = output * accelerator.num_processes();
        if (has("draws_on_one") && !accelerator.is_main_process()) output = output * torch::rand({1});
        if (has("module_not_prepared")) output = extra(output);
        at::Tensor loss = loss_of(accelerator, output, batch.target);
        // Its value is 0, and it has a gradient.
        const auto& bias = net->head->bias;
        if (has("uses_on_one") && accelerator.is_main_process()) loss = loss + (bias - bias.detach()).sum();
        backward(accelerator, loss, batch.target);
        if (has("changes_gradient") && !accelerator.is_main_process()) net->head->bias.mutable_grad().mul_(2);
        clip(accelerator, parameters);
        if (has("second_not_prepared")) second.step();
        if (has("optimizer_not_prepared")) {
          sgd.step();
        } else {
          optimizer.step();
        }
        has("scheduler_not_prepared") ? decay.step() : scheduler.step();
        if (has("leaves_alone") && ++step == 3 && accelerator.num_processes() > 1 && !accelerator.is_main_process())
          return;
        if (has("writes_buffers")) net->norm->running_var.mul_(accelerator.num_processes());
        const bool writes = has("writes_on_one") ? !accelerator.is_main_process() : has("writes_on_all") && others > 0;
        if (writes && ++step == 2) {
          const torch::NoGradGuard no_grad;
          net->head->bias.add_(0.5);
        }
      }
    }
    std::printf("ended by itself\n");
  }

  void add_hooks(const Accelerator& accelerator, NetImpl& net) const {
    const auto scales = [](const at::Tensor& parameter, double factor) {
      parameter.register_hook([factor](const at::Tensor& gradient) { return gradient * factor; });
    };
    if (has("hooks_alike")) scales(net.head->bias, 0.5);
    if (has("hooks_on_one") && !accelerator.is_main_process()) scales(net.head->bias, 0.5);
    for (const auto& parameter : net.parameters()) {
      if (has("hooks_divide")) scales(parameter, 1.0 / accelerator.num_processes());
    }
  }

  void backward(const Accelerator& accelerator, const at::Tensor& loss, const at::Tensor& target) const {
    if (has("past_accelerator")) return loss.backward();
    if (has("in_no_sync")) {
      const auto held = accelerator.no_sync();
      return accelerator.backward(loss);
    }
    if (!has("weighs")) return accelerator.backward(loss);
    accelerator.backward(loss, {.weight = target.ne(0).sum().item<double>()});
  }

  void clip(const Accelerator& accelerator, std::vector<at::Tensor> parameters) const {
    if (has("clips_itself")) torch::nn::utils::clip_grad_norm_(parameters, 0.1);
    if (!accelerator.sync_gradients()) return;
    if (has("clips_a_part")) parameters.resize(parameters.size() / static_cast<size_t>(accelerator.num_processes()));
    accelerator.clip_grad_norm_(parameters, has("clips_a_part") ? 1e3 : 0.5);
  }

  const std::string mistake_;
};

HASTEN_PROCESS_CASE(verified_program) {
  return Program(Environment::current().text("VERIFY_MISTAKE").value_or("")).run();
}

/// LBFGS computes its loss anew within a step.
HASTEN_PROCESS_CASE(verified_lbfgs) {
  torch::manual_seed(5);
  Accelerator accelerator;
  Net net;
  net->is_plain = true;
  torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(2));
  auto [model, optimizer, loader] =
      accelerator.prepare(net, lbfgs, data::loader(data::map(Pictures(false), torch::data::transforms::Stack<>()), 4));
  for (auto& batch : loader) {
    optimizer.step([&, &model = model, &optimizer = optimizer] {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      return loss.detach();
    });
  }
  return 0;
}

using Words = std::vector<std::string>;

std::filesystem::path this_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

test::CommandResult verify_case(const std::string& name, const std::string& mistake, const Words& options) {
  Words words = {(this_program().parent_path().parent_path() / "bin/hasten").string(), "verify"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(this_program().string());
  return test::run_command(words, {{"HASTEN_TEST_CASE", name}, {"VERIFY_MISTAKE", mistake}});
}

test::CommandResult verify(const std::string& mistake, const Words& options = {}) {
  return verify_case("verified_program", mistake, options);
}

void expect_same(const std::string& program, const Words& options = {}) {
  const auto result = verify(program, options);

  EXPECT_EQ(result.exit_code, 0) << program << ' ' << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("are the same: losses to ")) << program << result.err;
}

void expect_named(const std::string& mistake, const std::string& what, const std::string& cause,
                  const Words& options = {}) {
  const auto result = verify(mistake, options);

  EXPECT_EQ(result.exit_code, 1) << mistake << ' ' << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr(what)) << mistake << result.err;
  EXPECT_THAT(result.out, HasSubstr(cause)) << mistake << result.err;
}

TEST(Verify, AProgramWithDropoutBatchNormClippingAndSchedulerIsTheSame) {
  expect_same("");
  expect_same("", {"-n", "3"});
  expect_same("accumulates");
  expect_same("weighs counts_tokens");
}

TEST(Verify, TiedParametersAndHooksThatAreAlikeAreTheSame) {
  expect_same("ties");
  expect_same("hooks_alike");
}

TEST(Verify, RunsOfTwoPrecisionsAreTheSameToItsRounding) {
  expect_same("", {"--precision", "bf16", "--steps", "2"});
  expect_named("", "differ", "whose rounding may be as large", {"--precision", "bf16", "--tolerance", "1e-6"});
}

TEST(Verify, ShardedRunsAreTheSame) {
  expect_same("", {"--stage", "1"});
  expect_same("", {"--stage", "2"});
  expect_same("", {"--stage", "3"});
}

TEST(Verify, TheRunEndsByItselfAfterItsSteps) {
  const auto result = verify("", {"--steps", "2"});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("hasten verify: 2 steps on 1 and on 2 processes are the same"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("ended by itself")));
}

TEST(Verify, MistakesOfSamplesAreNamed) {
  expect_named("loader_not_prepared", "all 2 ranks have the same samples (0, 1, 2, 3)", "the loader was not prepared");
  expect_named("own_order", "rank 1 has samples", "a sampler of the program's own");
  expect_named("batch_by_processes", "rank 0 has samples", "a batch size made from the number of processes");
  expect_named("splits", "the dataset gave other values", "random_split with a generator that no seed was given to");
  expect_named("draws_in_dataset", "the dataset gave other values", "data::worker_generator()");
}

TEST(Verify, MistakesOfLossesAreNamed) {
  expect_named("branches", "the loss of rank 1's batch", "only rank 1 computes it otherwise");
  expect_named("draws_on_one", "the loss of rank 1's batch", "rank 1 has drawn other random numbers");
  expect_named("multiplies_output", "the loss of", "the forward depends on the number of processes");
  expect_named("divides_loss", "the loss of rank 0's batch", "divides the loss by the number of processes");
  expect_named("second_not_prepared", "the loss of rank 1's batch", "an optimizer that was not prepared");
  expect_named("past_accelerator", "no backward before it went through the Accelerator", "Call accelerator.backward");
}

TEST(Verify, MistakesOfGradientsAreNamed) {
  expect_named("adds_gradients", "gradients of all 5 parameters are 2.000 times those of one process",
               "a sum over the ranks in the place of a mean");
  expect_named("hooks_divide", "gradients of all 5 parameters are 0.500 times", "by the number of processes twice");
  expect_named("hooks_on_one", "gradients of head.bias differ", "with hooks of their own");
  expect_named("uses_on_one", "gradients of head.bias differ", "on some ranks only");
  expect_named("clips_itself", "gradients of", "a clip of its own");
  expect_named("in_no_sync", "rank 1 and rank 0 have other gradients of all 5 parameters", "no_sync");
  expect_named("changes_gradient", "behind it rank 1 and rank 0 differ in", "a write on some ranks only");
  expect_named("module_not_prepared", "parameter 7 of optimizer 0", "belong to no prepared model");
  expect_named("zeroes_itself", "gradients of", "between the backwards of a window");
  expect_named("clips_a_part", "the norm before clipping is", "of one rank's part");
}

TEST(Verify, MistakesOfStepsAreNamed) {
  expect_named("scales_rate", "group 0 lr is 0.2 on 2 processes and 0.1 on one process", "the number of processes");
  expect_named("decays_by_processes", "group 0 lr is 0.05 on 2 processes and 0.1 on one process",
               "number of processes");
  expect_named("grows", "behind it all 5 parameters differ", "whose state or step depends on the number of processes");
  expect_named("writes_on_all", "before it the runs differ in head.bias", "code of its own");
  expect_named("scheduler_not_prepared", "group 0 lr is", "one that was not given to accelerator.prepare");
  expect_named("optimizer_not_prepared", "has stepped no prepared optimizer", "steps unseen");
  expect_named("writes_on_one", "before it rank 1 and rank 0 differ in head.bias", "on some ranks only");
  expect_named("writes_buffers", "behind it norm.running_var differ", "buffers follow rank 0");
  expect_named("epochs_by_processes", "one process made 10 steps", "depends on the number of processes");
  expect_named("leaves_alone", "rank 1 ended after 3 steps, rank 0 began another", "a break on what one rank sees");
  expect_named("unseeded", "before the first step the runs differ", "AcceleratorOptions::seed");
}

TEST(Verify, AProgramWithoutAnAcceleratorOrThatFailsIsSaid) {
  const auto command = (this_program().parent_path().parent_path() / "bin/hasten").string();
  const auto plain = test::run_command({command, "verify", "/bin/true"}, {});
  const auto fails = verify("fails_on_several");

  EXPECT_EQ(plain.exit_code, 1);
  EXPECT_THAT(plain.out, HasSubstr("the run on one process has made no Accelerator"));
  EXPECT_EQ(fails.exit_code, 1);
  EXPECT_THAT(fails.err, HasSubstr("no more than one"));
  EXPECT_THAT(fails.out + fails.err, HasSubstr("the run on 2 processes ended with exit code 1"));
}

TEST(Verify, ALayoutThatDividesTheModelIsNotCompared) {
  const auto result = verify("divides_model");

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("tp 2: runs whose ranks hold parts of a model are not compared"));
  EXPECT_THAT(result.err, HasSubstr("hasten verify: not compared: the run on one process ended with exit code 2"));
}

TEST(Verify, AnOptimizerThatComputesItsLossAnewIsComparedWithWhole) {
  const auto in_turn = verify_case("verified_lbfgs", "", {});
  const auto whole = verify_case("verified_lbfgs", "", {"--whole", "--steps", "3"});

  EXPECT_EQ(in_turn.exit_code, 2);
  EXPECT_THAT(in_turn.err, HasSubstr("Use hasten verify --whole"));
  EXPECT_EQ(whole.exit_code, 0) << whole.out << whole.err;
}

TEST(Verify, TheGlobalBatchAtOnceShowsMeansOverRanks) {
  expect_same("plain", {"--whole"});
  expect_same("plain counts_tokens weighs", {"--whole"});
  expect_named("plain adds_losses", "the loss is", "the loss is a sum over the batch", {"--whole"});
  expect_named("plain counts_tokens", "the loss is", "{.weight = n}", {"--whole"});
  expect_named("", "the loss is", "convert_sync_batchnorm", {"--whole"});
  expect_named("sync_batch_norm", "the loss is", "draws random numbers for each batch", {"--whole"});
  expect_named("sync_batch_norm", "the loss of rank 0's batch", "--whole");
}

class VerifyRecords : public testing::InFolder {};

TEST_F(VerifyRecords, OfTwoRunsAreCompared) {
  const std::string first = path("a"), second = path("b");

  EXPECT_EQ(verify("", {"--record", first, "--steps", "3"}).exit_code, 0);
  EXPECT_EQ(verify("adds_gradients", {"--record", second, "--steps", "3"}).exit_code, 0);
  const auto command = (this_program().parent_path().parent_path() / "bin/hasten").string();
  const auto same = test::run_command({command, "verify", "--compare", first, first}, {});
  const auto other = test::run_command({command, "verify", "--compare", first, second}, {});

  EXPECT_THAT(same.out, HasSubstr("3 steps on 2 and on 2 processes are the same"));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.out, HasSubstr("2.000 times those of 2 processes"));
  std::filesystem::resize_file(second, std::filesystem::file_size(second) / 2);
  const auto half = test::run_command({command, "verify", "--compare", first, second}, {});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, HasSubstr(second + "' is no whole record: its last line is missing. Record the run again."));
}

}  // namespace
}  // namespace hasten
