// See accelerator/accelerator_state.h.
#include "accelerator/accelerator_state.h"

#include <c10/util/ScopeExit.h>

#include <limits>
#include <set>
#include <utility>

#include "accelerator/steps_of_parts.h"
#include "accelerator/survive_setup.h"
#include "accelerator/tracking_setup.h"
#include "accelerator/verify_setup.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/checkpoint/optimizer_devices.h"
#include "hasten/checkpoint/optimizer_parts.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/interception/interceptor.h"
#include "hasten/memory/allocator.h"
#include "hasten/offload/load/is_dispatched.h"
#include "hasten/offload/units/move_module.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/model/jit_module.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "hasten/parallel/shard/build.h"
#include "hasten/parallel/shard/prepare_sharding.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "hasten/plugins/megatron.h"
#include "hasten/process/random.h"
#include "hasten/process/rejoining.h"
#include "hasten/process/report_errors.h"

namespace hasten {
namespace {

process::RejoiningProcess make_process(const ReadOptions& read) {
  const auto& given = read.options;
  const process::ProcessOptions options{.cpu = given.cpu,
                                        .timeout = given.timeout,
                                        .check = given.check,
                                        .backend = given.backend,
                                        .change_process = given.change_process};
  if (auto rejoining = process::make_rejoining(options, read.environment)) return *std::move(rejoining);
  return {process::Process(options, read.environment), nullptr};
}

// "tp 2, pp 2": the axes over which a layout divides models and sequences.
std::string axes_of(const parallel::Layout& layout) {
  std::vector<std::string> words;
  for (const auto axis : plan::kAxes) {
    const bool is_of_data = axis == plan::Axis::kDpReplicate || axis == plan::Axis::kDpShard;
    if (!is_of_data && layout.sizes()[axis] > 1)
      words.push_back(text(plan::axis_name(axis), ' ', layout.sizes()[axis]));
  }
  return join(words);
}

StageLayers stage_layers(const Plugins& plugins) {
  const auto* const megatron = plugins.find_megatron();
  if (megatron == nullptr) return {};
  const auto [last, decoder_rank] = megatron_stages(*megatron);
  return {last, decoder_rank};
}

}  // namespace

AcceleratorState::AcceleratorState(const ReadOptions& read, std::optional<process::Process> own)
    : AcceleratorState(read, own ? process::RejoiningProcess{*std::move(own), nullptr} : make_process(read)) {}

std::shared_ptr<AcceleratorState> AcceleratorState::make(const AcceleratorOptions& options,
                                                         const Environment& environment) {
  const auto reporter = options.change_process ? process::report_errors(environment) : nullptr;
  return std::make_shared<AcceleratorState>(read_options(options, environment), std::nullopt);
}

AcceleratorState::AcceleratorState(const ReadOptions& read, const process::RejoiningProcess& made)
    : AcceleratorState(read, made.process) {
  process_watch = made.watch;
}

AcceleratorState::AcceleratorState(const ReadOptions& read, const process::Process& process)
    : layout(process, comparable_layout(read.environment, process, read.options.parallel)),
      operations(std::make_shared<parallel::Operations>(process, gradients, layout.data())),
      plugins(std::make_shared<Plugins>(read.options, read.environment, layout.data().world_size())),
      options(plugins->options()),
      accumulation(accumulation_options(options)),
      advice(std::make_shared<Advice>(operations->logger("accelerator"), layout.data().world_size())),
      verify(open_verify(read.environment, process)),
      data_process(share_process(verify.get(), layout.data_process(process))),
      context(layout.context(), {.by_heads = layout.sizes().sp > 1,
                                 .balance = options.parallel.balance,
                                 .strict = options.parallel.strict,
                                 .recompute_exchanges = options.parallel.recompute_exchanges,
                                 .place = layout.place()}),
      pipelines(layout, stage_layers(*plugins)) {
  start(read.environment);
}

void AcceleratorState::start(const Environment& environment) {
  if (comm::meetings_of(process().group())) require_survivable(options, layout, *plugins, environment, process());
  plugins->log_notes([this](const char* subject) { return operations->logger(subject); });
  sharding = parallel::make_sharding(layout.data(), shard_options(options, layout), *gradients, options.optimizer,
                                     plugins->splits_later());
  if (options.seed) process::set_seed(process(), *options.seed);
  // The first of all policies.
  gradients->step_policies().add(training::StepOrder::kUnscale, step_record->begin_policy());
  gradients->step_policies().add(training::StepOrder::kUnscale, advice);
  precision = std::make_shared<MixedPrecision>(options, environment, process(), gradients, models,
                                               operations->logger("precision"));
  precision->start(options, optimizer_registry, sharding != nullptr || layout.divides_model(), layout.model());
  parallel::share_casts(sharding, precision->precision());
  // The policy is the gradients' own, and the precision holds these.
  const std::weak_ptr<MixedPrecision> unscales = precision;
  plugins->clip_steps(*gradients, [parts = clip_parts(), unscales](const auto& parameters, double max_norm) {
    const auto clip = [&] { return parallel::clip_grad_norm_(parts, parameters, max_norm, 2.0); };
    const auto held = unscales.lock();
    held ? held->clip_grad_norm_(parameters, 2.0, clip) : clip();
  });
  plugins->check_overflows(
      *gradients,
      [parts = clip_parts()](const auto& parameters) { return parallel::has_finite_gradients(parts, parameters); },
      operations->logger("precision"));
  plugins->report_steps(*gradients, process());
  gradients->step_policies().add(training::StepOrder::kAfter, step_record);
  backward_observers.add(step_record);
  step_record->set_values({.check_gradients_every = options.watch.check_gradients_every,
                           .stop_on_nonfinite = options.watch.stop_on_nonfinite,
                           .scales_loss = precision->scaler_state().has_value()});
  gradients->step_policies().add(training::StepOrder::kAfter, step_times);
  if (layout.context().world_size() > 1) {
    step_exchanges->add(layout.sizes().sp > 1 ? "sp" : "cp", layout.context().world_size(), nullptr,
                        [own = context] { return own.counts(); });
  }
  if (layout.divides_model())
    gradients->step_policies().add(training::StepOrder::kAfter, StepExchanges::policy(step_exchanges));
  backward_observers.add(step_times);
  checkpoints =
      std::make_shared<checkpoint::Checkpoints>(checkpoint::RunParts{.process = process(),
                                                                     .log = operations->logger("checkpoint"),
                                                                     .models = &models,
                                                                     .registry = &optimizer_registry,
                                                                     .gradients = gradients,
                                                                     .accumulation = &accumulation,
                                                                     .sharding = sharding,
                                                                     .layout = &layout,
                                                                     .low_weights = &precision->low_weights(),
                                                                     .home = environment.text("HOME").value_or("")},
                                                options.project);
  trackers = make_trackers(options, environment, process());
  plugins->monitor_steps(*gradients, trackers, process());
  tracked = track_checkpoints(trackers, *checkpoints, optimizer_registry, process());
  verified = attach_verify(verify, {.process = process(),
                                    .layout = &layout,
                                    .ddp = &options.ddp,
                                    .models = &models,
                                    .registry = &optimizer_registry,
                                    .sharding = sharding,
                                    .precision = precision,
                                    .gradients = gradients,
                                    .observers = &backward_observers});
  // Beside a GPU the host's memory is that of batches and snapshots, whose pages cost as much.
  const auto setting = memory::tune_malloc(environment, options.tune_allocator);
  operations->logger("accelerator").info(memory::describe(setting));
}

process::DistributedType AcceleratorState::distributed_type() const noexcept {
  if (plugins->uses_fsdp()) return process::DistributedType::kFsdp;
  if (plugins->uses_deepspeed()) return process::DistributedType::kDeepSpeed;
  if (plugins->uses_megatron_lm()) return process::DistributedType::kMegatronLm;
  return process::distributed_type(process());
}

Logger AcceleratorState::logger(const std::string& name, std::optional<LogLevel> level) const {
  Logger logger = operations->logger(name);
  if (level) logger.set_level(*level);
  logger.on_warning([run = trackers](LogLevel of, std::string_view line) mutable {
    run.note(std::string(line), of == LogLevel::kWarning ? "warning" : "error");
  });
  return logger;
}

void AcceleratorState::end_training() {
  const comm::Purpose purpose("end_training");
  advice->at_end(process().world_size());
  trackers.finish();
  checkpoints->end();
  for (const auto& model : models.all()) model->check_parameters();
  operations->wait_for_everyone();
}

void AcceleratorState::backward(const at::Tensor& loss, const parallel::BackwardOptions& given) {
  plugins->require_filled();
  const int64_t num_scopes = open_scope.use_count() - 1;
  if (num_scopes > 1 && accumulation.options().num_steps > 1) {
    throw UsageError(Origin{"accelerator", process().rank(), process().world_size()}, "backward inside of ", num_scopes,
                     " scopes of accumulate(), which have counted the batch as often. Open one scope for a batch, and "
                     "name all of its models: accumulate(first, second).");
  }
  advice->before_backward(
      {.num_steps = plugins->uses_deepspeed() || num_turns() > 1 ? 1 : accumulation.options().num_steps,
       .optimizer_calls = gradients->optimizers().num_calls(),
       .is_accumulating = num_turns() == 1 && num_scopes > 0,
       .scales_loss = num_turns() == 1 && precision->scaler_state().has_value()});
  parallel::BackwardContext context{.models = models.all(),
                                    .group = layout.data(),
                                    .num_batches = accumulation.options().num_steps * num_turns(),
                                    .ends_window = gradients->sync_gradients(),
                                    .optimizer_calls = gradients->optimizers().num_calls()};
  parallel::BackwardOptions own = given;
  Models held;
  const bool implied = !given.weight && (operations->is_joining() || gradients->has_joined_window());
  if (implied) own.weight = 1.0;
  if (operations->is_joining()) {
    const auto active = operations->notify(parallel::BackwardCall::of(context).encode());
    for (const auto& model : context.models)
      parallel::set_active(*model, active.first(), active.all_of(layout.data().world_size()));
    held = parallel::keep_window_open(active.call, context);
    gradients->set_sync_gradients(context.ends_window);
  }
  gradients->set_joined_window(implied && !context.ends_window);
  if (num_turns() > 1 && !context.ends_window) held = not_held_back();
  const parallel::NoSync until_all_end(std::move(held));
  const auto received = gradients->loaders().take_counts();
  if (received.num_samples > 0) advice->note_batch();
  trackers.count_step(received.num_samples);
  trackers.count_data_wait(std::chrono::duration<double>(received.waited).count());
  if (own.weight) gradients->set_weighted();
  const training::BackwardFacts facts{loss, own.weight, received.num_samples, received.waited, context.ends_window};
  const auto leave = c10::make_scope_exit([this] { backward_observers.leave(); });
  backward_observers.before(facts);
  // Autocast is off in backward, whatever scope the caller has left open.
  const auto scope = precision::Autocast::off();
  plugins->begin_backward(loss);
  const at::Tensor scaled = loss.defined() ? precision->begin_backward(loss) : loss;
  parallel::at_place(layout.place(), [&] { parallel::backward(scaled, own, context); });
  plugins->end_backward();
  gradients->optimizers().note_backward(!gradients->sync_gradients());
  backward_observers.after(facts);
}

int64_t AcceleratorState::num_turns() const noexcept {
  return verify ? verify->num_turns() : 1;
}

AcceleratorState::Models AcceleratorState::not_held_back() const {
  Models all = models.all();
  std::erase_if(all, [](const auto& model) { return model->step().window().holds_back(); });
  return all;
}

parallel::NoSync AcceleratorState::accumulate(Models chosen) {
  advice->note_accumulate();
  if (num_turns() > 1) {
    verify->accumulate([this](bool ends_pass) {
      const auto& of = accumulation.options();
      const bool ends = of.sync_with_dataloader && ends_pass;
      accumulation.set_step(ends ? 0 : accumulation.step() + 1);
      return ends || accumulation.step() % of.num_steps == 0;
    });
  } else {
    accumulation.next(*gradients);
  }
  if (gradients->sync_gradients()) return parallel::NoSync({}, false, open_scope);
  return no_sync(std::move(chosen), accumulation.options().sync_each_batch, open_scope);
}

parallel::NoSync AcceleratorState::no_sync(Models chosen, bool exchanges, std::shared_ptr<const void> held) {
  exchanges = exchanges || parallel::exchanges_each_backward(sharding);
  return parallel::NoSync(chosen.empty() ? models.all() : std::move(chosen), exchanges, std::move(held));
}

parallel::SurviveReport AcceleratorState::survive(const parallel::SurviveOptions& survived,
                                                  const parallel::SurvivedLoop& loop,
                                                  const std::function<void(int64_t)>& after_epoch) {
  operations->reject_in_join("survive");
  return parallel::survive({.process = process(),
                            .models = models,
                            .registry = optimizer_registry,
                            .accumulation = accumulation,
                            .gradients = gradients,
                            .healed = [this](int64_t num_steps) { step_record->go_on_from(num_steps); }},
                           survived, loop, after_epoch);
}

void AcceleratorState::join_uneven_inputs(const std::function<void()>& fn, const parallel::JoinOptions& joined) {
  operations->reject_in_join("join_uneven_inputs");
  refuse_where_replaced("join_uneven_inputs", process());
  if (layout.divides_model() && sharding) {
    throw UsageError(Origin{"accelerator", process().rank(), process().world_size()},
                     "join_uneven_inputs with sharding and ", axes_of(layout),
                     ": norms of split parts need all ranks, and a model without data takes no steps. Use "
                     "ShardStage::kNone (.parallel.dp_replicate), or give every rank as many batches (even_batches).");
  }
  precision->require_whole_weights("join_uneven_inputs");
  if (sharding && precision->scaler_state()) {
    throw UsageError(
        Origin{"accelerator", process().rank(), process().world_size()},
        "join_uneven_inputs with sharding and fp16: ranks without data do not know the loss scale. Use bf16, or give "
        "every rank as many batches (even_batches).");
  }
  const bool gathers = sharding && sharding->options().stage == parallel::ShardStage::kParameters;
  if (gathers && !process().device().is_cpu()) {
    throw UsageError(Origin{"accelerator", process().rank(), process().world_size()},
                     "join_uneven_inputs with stage 3 on a device: all ranks gather a unit together, and a rank "
                     "without data makes no "
                     "forward. Use stage 1 or 2, or give every rank as many batches (even_batches).");
  }
  const auto scope = std::make_shared<parallel::Join>(layout.data(), layout.model(), process().group());
  operations->set_join(scope);
  const auto leave = c10::make_scope_exit([this] { operations->set_join(nullptr); });
  parallel::run_joined(*scope, fn, joined,
                       {.group = layout.data(),
                        .models = models,
                        .optimizer_registry = optimizer_registry,
                        .accumulation = accumulation,
                        .gradients = *gradients,
                        .operations = *operations,
                        .sharding = sharding,
                        .optimizer_options = &options.optimizer});
}

std::shared_ptr<const parallel::Ddp> AcceleratorState::distribute(torch::nn::Module& module, bool place) {
  const comm::Purpose purpose("prepare of a model");
  advice->note_model(module);
  if (!models.contains(module)) operations->reject_in_join("prepare of a model");
  const bool is_dispatched = offload::is_dispatched(module);
  require_divisible(module, is_dispatched);
  if (is_dispatched) require_evaluation(module);
  plugins->require_alike(process());
  plugins->mark_leaf_modules(module, sharding);
  const bool is_empty = parallel::settle_empty(module, parallel::splits_models(sharding));
  const bool splits = parallel::place_split_models(sharding, place ? process().device() : c10::Device(at::kCPU));
  const bool is_new = !models.contains(module);
  // Parts do not move: a model that several ranks hold is where it was prepared.
  const bool stays = layout.divides_model() && !is_new;
  if (place && !is_empty && !splits && !is_dispatched && !stays) {
    offload::move_module(module, process().device());
  }
  if (is_new && layout.divides_model()) parallel::fit_sync_batchnorm(module, layout, process().group());
  cut(module, is_empty);
  place_optimizers(module, is_new);
  precision->convert(module);
  // Parameters are memory here, cut or not.
  std::optional<interception::PassScope> pass;
  if (layout.divides_model()) pass.emplace();
  auto ddp = models.distribute(module, layout.data(), parallel::with_sharding(options.ddp, sharding));
  advice->note_model(module);
  advice->note_exchange(ddp);
  return ddp;
}

void AcceleratorState::require_evaluation(const torch::nn::Module& module) const {
  if (process().world_size() == 1 && !sharding) return;
  throw UsageError(Origin{"accelerator", process().rank(), process().world_size()},
                   "prepare of a dispatched model: ", module.name(),
                   " has its weights where a device map or a Placement put them, and ",
                   sharding ? text("stage ", static_cast<int>(options.shard.stage), " would split them")
                            : text(process().world_size(), " processes would exchange their gradients"),
                   ". Prepare a model whose weights are loaded whole (load_checkpoint_in_model), split it by "
                   "AcceleratorOptions::shard, or call offload::undispatch(module) first.");
}

void AcceleratorState::require_divisible(const torch::nn::Module& module, bool is_dispatched) const {
  const auto& sizes = layout.sizes();
  if (sizes.tp == 1 && sizes.pp == 1) return;
  const Origin origin{"accelerator", process().rank(), process().world_size()};
  const std::string axis = sizes.tp > 1 ? text("tp = ", sizes.tp) : text("pp = ", sizes.pp);
  if (is_dispatched) {
    throw UsageError(origin, axis, " with a model whose weights a device map or a Placement has put: ", module.name(),
                     " has weights that are read while it runs, and are no memory to be cut. Load them whole "
                     "(load_checkpoint_in_model), or call offload::undispatch(module) first.");
  }
  module.apply([&](const std::string& name, const torch::nn::Module& part) {
    if (dynamic_cast<const parallel::JitModuleImpl*>(&part) == nullptr) return;
    throw UsageError(origin, axis, " with a TorchScript module", name.empty() ? "" : text(" ('", name, "')"),
                     ": its parameters lie in a script, which is compiled for whole ones. Write it as a "
                     "torch::nn::Module, or run it without tp and pp.");
  });
}

void AcceleratorState::require_cuttable(bool is_empty, const std::string& axis) const {
  const Origin origin{"accelerator", process().rank(), process().world_size()};
  if (is_empty) {
    throw UsageError(origin, axis,
                     " with a model that was built without memory (build): its values are not there to be cut. "
                     "Construct it as usual.");
  }
  if (options.precision.weights != precision::Weights::kParameter) {
    throw UsageError(origin, axis,
                     " with weights below float32 (precision.weights): their exact values are not cut. Leave it at "
                     "Weights::kParameter.");
  }
}

void AcceleratorState::cut(torch::nn::Module& module, bool is_empty) {
  if (models.contains(module)) return;
  if (layout.pipeline().world_size() > 1) require_cuttable(is_empty, text("pp = ", layout.sizes().pp));
  if (layout.tensor().world_size() == 1) return divide(module);
  require_cuttable(is_empty, text("tp = ", layout.sizes().tp));
  const parallel::TensorParallel cut(module, layout.tensor(),
                                     {.plan = options.parallel.tensor_plan,
                                      .sequence_parallel = options.parallel.sequence_parallel,
                                      .strict = options.parallel.strict,
                                      .recompute_exchanges = options.parallel.recompute_exchanges,
                                      .place = layout.place()});
  cut_models[&module] = cut.forward_hook();
  step_exchanges->note_cuts(module, cut.cuts());
  step_exchanges->add("tp", layout.sizes().tp, &module, [cut] { return cut.counts(); });
  std::vector<std::string> words;
  for (const auto& [name, of] : cut.cuts()) words.push_back(name + " " + parallel::describe(of));
  operations->logger("tensor").info(text("cut over tp ", layout.sizes().tp, ": ", join(words, ", ")));
  divide(module);
}

void AcceleratorState::divide(torch::nn::Module& module) {
  pipelines.divide(module);
  const auto* const pipeline = pipelines.find(module);
  if (pipeline == nullptr) return;
  step_exchanges->add("pp", layout.sizes().pp, &module, [own = *pipeline] { return own.counts(); });
}

void AcceleratorState::place_optimizers(const torch::nn::Module& module, bool is_new) {
  std::set<const c10::TensorImpl*> cut;
  if (is_new) {
    for (const at::Tensor& parameter : module.parameters()) cut.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, optimizer] : optimizer_registry.optimizers()) {
    require_steps_of_parts(*optimizer);
    fit_state(*optimizer, [&](const at::Tensor& parameter) { return cut.contains(parameter.unsafeGetTensorImpl()); });
  }
}

void AcceleratorState::fit_state(torch::optim::Optimizer& optimizer, const checkpoint::ParameterChoice& chosen) const {
  if (layout.divides_model()) {
    checkpoint::cut_state_to_parts(optimizer, {"accelerator", process().rank(), process().world_size()}, chosen);
  }
  checkpoint::move_state_to_parameters(optimizer);
}

void AcceleratorState::require_steps_of_parts(const torch::optim::Optimizer& optimizer) const {
  if (layout.tensor().world_size() == 1 && layout.sizes().pp == 1) return;
  hasten::require_steps_of_parts(optimizer, {layout.sizes().tp, layout.sizes().pp},
                                 {"accelerator", process().rank(), process().world_size()});
}

double AcceleratorState::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (gradients->sync_gradients()) plugins->note_clipped();
  if (!gradients->sync_gradients()) max_norm = std::numeric_limits<double>::infinity();
  const double norm = precision->clip_grad_norm_(
      parameters, norm_type, [&] { return parallel::clip_grad_norm_(clip_parts(), parameters, max_norm, norm_type); });
  if (gradients->sync_gradients()) step_record->note_norm(norm);
  if (verify && gradients->sync_gradients()) verify->note_norm(norm);
  return norm;
}

void AcceleratorState::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!gradients->sync_gradients()) return;
  precision->unscale(parameters);
  parallel::clip_grad_value_(sharding, parameters, clip_value);
}

parallel::LocalSgdOptions AcceleratorState::local_sgd_options(parallel::LocalSgdOptions given) const {
  precision->require_whole_weights("local_sgd");
  refuse_where_replaced("local_sgd", process());
  if (verify) {
    throw UsageError(Origin{"verify", process().rank(), process().world_size()},
                     "local_sgd lets the ranks drift apart by design, so N processes do not compute what one does. "
                     "Leave it out for this run.");
  }
  given.on_average = [precision = precision, then = given.on_average] {
    precision->share_least_scale();
    if (then) then();
  };
  return given;
}

}  // namespace hasten
