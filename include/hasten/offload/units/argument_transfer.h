// ArgumentTransfer: moves the tensors of a call to the device that computes, and results back.
//
// Accelerate's hooks do this with send_to_device and skip_keys. Values of a type that holds no tensors known here pass
// through unchanged.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hasten::offload::detail {

template <class T>
inline constexpr bool kIsTuple = false;
template <class... T>
inline constexpr bool kIsTuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool kIsTuple<std::pair<A, B>> = true;
template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsMap = false;
template <class K, class T>
inline constexpr bool kIsMap<std::map<K, T>> = true;
template <class K, class T>
inline constexpr bool kIsMap<std::unordered_map<K, T>> = true;

class ArgumentTransfer {
 public:
  ArgumentTransfer() = default;
  /// `device` empty: nothing moves. `skip_keys`: keys of maps whose values stay, and "#2" for the third argument.
  /// `back`: results go to the device of the first tensor argument.
  ArgumentTransfer(std::optional<at::Device> device, std::vector<std::string> skip_keys, bool back)
      : device_(device), skip_keys_(std::move(skip_keys)), back_(back) {}

  /// Returns argument `index` with its tensors on the device.
  template <class T>
  std::decay_t<T> moved(size_t index, T&& argument) const {
    std::decay_t<T> value(std::forward<T>(argument));
    if (device_ && !is_skipped_argument(index)) move_in(value, *device_);
    return value;
  }

  /// Returns the device that results go to; empty if they stay.
  template <class... Args>
  std::optional<at::Device> device_of_results(const Args&... args) const {
    std::optional<at::Device> found;
    if (back_) (find_device(args, found), ...);
    return found;
  }
  template <class T>
  void send_back(T& result, const std::optional<at::Device>& device) const {
    if (device) move_in(result, *device);
  }

 private:
  bool is_skipped(std::string_view key) const {
    return std::find(skip_keys_.begin(), skip_keys_.end(), key) != skip_keys_.end();
  }

  bool is_skipped_argument(size_t index) const {
    const std::string number = std::to_string(index);
    return std::any_of(skip_keys_.begin(), skip_keys_.end(), [&](const std::string& key) {
      return key.starts_with('#') && key.compare(1, std::string::npos, number) == 0;
    });
  }

  template <class T>
  static void find_device(const T& value, std::optional<at::Device>& found) {
    if constexpr (std::same_as<T, at::Tensor>) {
      if (!found && value.defined()) found = value.device();
    }
  }

  template <class T>
  void move_in(T& value, at::Device device) const {
    if constexpr (std::same_as<T, at::Tensor>) {
      if (value.defined() && !value.is_meta() && value.device() != device) value = value.to(device);
    } else if constexpr (std::same_as<T, c10::IValue>) {
      if (value.isTensor()) {
        move_in(value.toTensor(), device);
      } else if (value.isTuple()) {
        std::vector<c10::IValue> items = value.toTupleRef().elements().vec();
        move_in(items, device);
        value = c10::ivalue::Tuple::create(std::move(items));
      }
    } else if constexpr (kIsVector<T>) {
      if constexpr (std::is_class_v<typename T::value_type>) {
        for (auto& item : value) move_in(item, device);
      }
    } else if constexpr (kIsOptional<T>) {
      if (value) move_in(*value, device);
    } else if constexpr (kIsTuple<T>) {
      std::apply([&](auto&... items) { (move_in(items, device), ...); }, value);
    } else if constexpr (kIsMap<T>) {
      for (auto& [key, item] : value) {
        if constexpr (std::convertible_to<decltype(key), std::string_view>) {
          if (is_skipped(key)) continue;
        }
        move_in(item, device);
      }
    }
  }

  std::optional<at::Device> device_;
  std::vector<std::string> skip_keys_;
  bool back_ = false;
};

}  // namespace hasten::offload::detail
