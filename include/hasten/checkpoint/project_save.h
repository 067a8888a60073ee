// save and save_model as an Accelerator does them: on one process, and registering objects with or without names.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "hasten/checkpoint/checkpoints.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/process/process.h"

namespace hasten::checkpoint {

/// True on the process that writes: the first, or with save_on_each_node the first of each host.
inline bool writes(const process::Process& process, const ProjectConfiguration& project) noexcept {
  return project.save_on_each_node ? process.is_local_main_process() : process.is_main_process();
}

/// checkpoint::save_model on the process that writes, or with by_all_ranks on all of them.
/// Collective: with by_all_ranks. Blocks: on the disk. Throws: as save_model; UsageError for by_all_ranks with pickled
/// files.
void save_model(const process::Process& process, const ProjectConfiguration& project, const torch::nn::Module& module,
                const std::string& folder, const SaveModelOptions& options);

/// Something that checkpoint::save takes.
template <class T>
concept Savable = requires(const T& object) { checkpoint::save(object, std::string(), SaveFileOptions()); };

template <class T>
void save(const process::Process& process, const ProjectConfiguration& project, const T& object,
          const std::string& path, const SaveFileOptions& options) {
  if (!writes(process, project)) return;
  if constexpr (Savable<T>) {
    checkpoint::save(object, path, options);
  } else {
    static_assert(
        requires { *object; }, "save takes tensors, a StateDict, states and values, and torch::nn modules");
    checkpoint::save(*object, path, options);
  }
}

namespace detail {

template <class T>
void register_one(Checkpoints& checkpoints, const std::string& name, T&& object) {
  using Object = std::remove_cvref_t<T>;
  if constexpr (training::Stateful<Object>) {
    static_assert(std::is_lvalue_reference_v<T>,
                  "register an object that outlives the Accelerator, or a shared_ptr to it");
    checkpoints.register_object(name, object);
  } else {
    static_assert(
        requires { *object; }, "a registered object has state() and load_state() (hasten/training/stateful.h)");
    static_assert(training::Stateful<std::remove_cvref_t<decltype(*object)>>,
                  "a registered object has state() and load_state() (hasten/training/stateful.h)");
    checkpoints.register_object(name, object);
  }
}

}  // namespace detail

/// `(checkpoints, "ema", ema)`, or several objects without names, which are numbered.
/// Throws: UsageError for a name that is taken.
template <class First, class... Rest>
void register_objects(Checkpoints& checkpoints, First&& first, Rest&&... rest) {
  if constexpr (std::is_convertible_v<First, std::string>) {
    static_assert(sizeof...(Rest) == 1, "register_for_checkpointing takes one object after a name");
    detail::register_one(checkpoints, first, std::forward<Rest>(rest)...);
  } else {
    detail::register_one(checkpoints, {}, std::forward<First>(first));
    (detail::register_one(checkpoints, {}, std::forward<Rest>(rest)), ...);
  }
}

}  // namespace hasten::checkpoint
