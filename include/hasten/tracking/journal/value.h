// Values that are logged: numbers, texts, groups of them, images, tables, histograms, and settings.
//
// This header includes no tensor type. ValueOf<T> and ImagesOf<T> convert another type to a value.
// training/deferred_scalar.h and training/image_values.h do so for tensors. A tensor on a GPU becomes a Pending: a
// number whose copy is under way, so that logging it does not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::tracking {

class Value;
using Entry = std::pair<std::string, Value>;
using Values = std::vector<Entry>;

/// A number that another device is still computing or copying.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Returns true if value() will not wait.
  virtual bool ready() noexcept = 0;
  /// Returns the number. Blocks: until it is there.
  virtual double value() noexcept = 0;
};

/// Converts a T to a Value: a specialization has `static Value make(const T&)`.
template <class T>
struct ValueOf;

/// A number, a text, or a group of them under keys of their own (TensorBoard shows a group in one chart).
class Value {
 public:
  enum class Kind { kDouble, kInt, kBool, kString, kGroup, kPending, kInvalid };

  Value(bool value) : data_(value) {}
  template <class T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  Value(T value) : data_(static_cast<int64_t>(value)) {}
  template <class T>
    requires std::is_floating_point_v<T>
  Value(T value) : data_(static_cast<double>(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(std::string_view value) : data_(std::string(value)) {}
  Value(std::initializer_list<Entry> group);
  Value(Values group);
  Value(std::shared_ptr<Pending> pending) : data_(std::move(pending)) {}
  template <class T>
    requires requires(const T& value) { ValueOf<T>::make(value); }
  Value(const T& value) : Value(ValueOf<T>::make(value)) {}

  /// Returns a value that log refuses: "the value of 'KEY' is `what`; expected …".
  static Value invalid(std::string what);
  const std::string& what_is_wrong() const { return std::get<Invalid>(data_).what; }

  Kind kind() const noexcept { return static_cast<Kind>(data_.index()); }
  /// Return the value of that kind; as_number is for kDouble, kInt and kBool (0 or 1).
  /// Throws: std::bad_variant_access for another kind.
  double as_number() const;
  int64_t as_int() const { return std::get<int64_t>(data_); }
  const std::string& as_string() const { return std::get<std::string>(data_); }
  const Values& as_group() const;
  Pending& pending() const { return *std::get<std::shared_ptr<Pending>>(data_); }
  bool is_number() const noexcept { return kind() <= Kind::kBool; }

 private:
  struct Invalid {
    std::string what;
  };
  explicit Value(Invalid invalid) : data_(std::move(invalid)) {}
  // A shared_ptr, since a vector of the class itself cannot be a member of its variant.
  std::variant<double, int64_t, bool, std::string, std::shared_ptr<const Values>, std::shared_ptr<Pending>, Invalid>
      data_;
};

/// Settings of any nesting, written as nested braces: `{{"lr", 0.1}, {"betas", {0.9, 0.95}}}`. A list of pairs whose
/// first elements are texts is a map, any other list a list (nlohmann's rule).
class Config {
 public:
  Config() = default;
  Config(core::Value value) : value_(std::move(value)) {}
  template <class T>
    requires(std::is_constructible_v<core::Value, T> && !std::is_same_v<std::remove_cvref_t<T>, Config> &&
             !std::is_same_v<std::remove_cvref_t<T>, core::Value>)
  Config(const T& value) : value_(value) {}
  Config(std::initializer_list<Config> elements);

  const core::Value& value() const noexcept { return value_; }

 private:
  core::Value value_;
};

/// Returns the leaves of a tree of settings under keys joined with "/": "optimizer/lr". An element of a list has its
/// index as key.
std::vector<std::pair<std::string, core::Value>> flatten(const core::Value& config);

/// Returns the numbers and texts of `values`, groups joined with "/": {"a": {"b": 1}} -> {"a/b": 1}.
Values flatten(const Values& values);

/// Pixels in rows from the top left, `channels` (1 grey, 3 RGB or 4 RGBA) bytes each.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 3;
  std::vector<uint8_t> pixels = {};
};

/// Images whose pixels may still have to be copied from another device or converted.
class PendingImages {
 public:
  virtual ~PendingImages() = default;
  /// Returns the images; called once, on a thread of the trackers'. Blocks: until they are there.
  /// Throws: std::runtime_error, which is reported and drops the images.
  virtual std::vector<Image> take() = 0;
  /// Returns the memory held until take() has returned.
  virtual int64_t num_bytes() const noexcept = 0;
};

/// Converts a T to images: a specialization has `static std::shared_ptr<PendingImages> make(const T&)`.
template <class T>
struct ImagesOf;

/// The images under one key.
class Images {
 public:
  Images(Image image) : Images(std::vector<Image>{std::move(image)}) {}
  /// Throws: UsageError if the pixels are not width * height * channels bytes.
  Images(std::vector<Image> images);
  template <class T>
    requires requires(const T& images) { ImagesOf<T>::make(images); }
  Images(const T& images) : pending_(ImagesOf<T>::make(images)) {}

  const std::shared_ptr<PendingImages>& pending() const noexcept { return pending_; }

 private:
  std::shared_ptr<PendingImages> pending_;
};
using ImageValues = std::vector<std::pair<std::string, Images>>;

struct Table {
  std::vector<std::string> columns = {};
  /// Each as long as `columns`.
  std::vector<std::vector<core::Value>> rows = {};
};

/// Counts between limits, as TensorBoard has them: bucket i reaches from limits[i-1] to limits[i].
struct Histogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits = {}, counts = {};
};

/// Counts finite values into buckets that grow by a tenth from 1e-12 to 1e20 on both sides of zero. Returns those in
/// use and an empty one before them, as torch.utils.tensorboard's `bins="tensorflow"`.
/// If no value is finite, `num` is 0.
Histogram histogram(const double* values, size_t num_values);

/// Points of many dimensions, for TensorBoard's projector: row i of `values` has a line of `metadata` and a picture, if
/// given.
struct Embedding {
  int64_t num_dims = 0;
  /// [number of points, num_dims], row after row.
  std::vector<float> values = {};
  /// Lines, a line for each point. `columns` names the columns; a single column may omit it.
  std::vector<std::vector<std::string>> metadata = {};
  std::vector<std::string> columns = {};
  /// Images, an image for each point, all of one size.
  std::vector<Image> images = {};
};

/// A node of a graph: name with "/" for scopes, operation, names of its inputs.
struct GraphNode {
  std::string name = {};
  std::string op = {};
  std::vector<std::string> inputs = {};
};

}  // namespace hasten::tracking
