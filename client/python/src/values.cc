#include "client/python/src/values.h"

#include <pybind11/stl.h>

#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "client/python/src/call.h"

namespace cairn::python {
namespace {

py::str Text(absl::string_view text) { return py::str(text.data(), text.size()); }

template <typename Value>
py::dict FieldsDict(const Value& value);

template <typename Field>
py::object FieldObject(const Field& field) {
  if constexpr (std::is_same_v<Field, Facts>) {
    return FieldsDict(field);
  } else if constexpr (std::is_same_v<Field, Level>) {
    return Text(LevelName(field));
  } else if constexpr (std::is_same_v<Field, ObjectKind>) {
    return Text(ObjectKindName(field));
  } else if constexpr (std::is_same_v<Field, UnixMillis>) {
    return py::float_(static_cast<double>(field.value) / 1000);
  } else if constexpr (std::is_same_v<Field, BlockChecksums>) {
    return py::cast(field.crcs);
  } else {
    return py::cast(field);
  }
}

template <typename Value>
py::dict FieldsDict(const Value& value) {
  py::dict dict;
  VisitFields(value, [&dict](const char* name, const auto& field) {
    dict[Text(absl::StripSuffix(name, "_unix_ms"))] = FieldObject(field);
  });
  return dict;
}

}  // namespace

py::dict AsDict(const CheckpointInfo& info) { return FieldsDict(info); }
py::dict AsDict(const ObjectInfo& info) { return FieldsDict(info); }
py::dict AsDict(const LatestCheckpoint& latest) { return FieldsDict(latest); }

ObjectKind KindArgument(const std::string& name) {
  return Call([&] { return ParseObjectKind(name); });
}

Level LevelArgument(const std::string& name) {
  if (const auto level = ParseLevel(name); level.has_value()) return *level;
  Raise(absl::InvalidArgumentError(
      absl::StrCat("level: '", name, "' is none of CACHED, REPLICATED, PERSISTED")));
}

OpenMode OpenModeArgument(const std::string& mode) {
  if (mode == "map") return OpenMode::kMap;
  if (mode == "file") return OpenMode::kFile;
  if (mode == "read") return OpenMode::kRead;
  Raise(absl::InvalidArgumentError(absl::StrCat("mode: '", mode, "' is none of map, file, read")));
}

JobPolicy PolicyArgument(const py::dict& policy) {
  JobPolicy out;
  const auto mode = policy["mode"].cast<std::string>();
  out.mode = Call([&]() -> StatusOr<PersistMode> {
    StatusOr<PersistMode> parsed = ParsePersistMode(mode);
    CAIRN_RETURN_IF_ERROR(Annotate(parsed.status(), "policy.mode"));
    return parsed;
  });
  out.every = policy["every"].cast<int64_t>();
  out.keep_last = policy["keep_last"].cast<int64_t>();
  out.keep_every = policy["keep_every"].cast<int64_t>();
  if (!policy["replicas"].is_none()) out.replicas = policy["replicas"].cast<int32_t>();
  return out;
}

}  // namespace cairn::python
