// libcairn's values as Python sees them. Answers become dictionaries whose keys are the fields of
// cairn.info's classes; arguments arrive as plain Python values.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "common/info.h"
#include "common/policy.h"

namespace cairn::python {

namespace py = pybind11;

// Fields of common/info.h by name, with one change: a time is in seconds and loses the suffix
// "_unix_ms".
py::dict AsDict(const CheckpointInfo& info);
py::dict AsDict(const ObjectInfo& info);
py::dict AsDict(const LatestCheckpoint& latest);

// Each raises ValueError that names the field, the value and what it may be.
ObjectKind KindArgument(const std::string& name);
Level LevelArgument(const std::string& name);
OpenMode OpenModeArgument(const std::string& mode);
JobPolicy PolicyArgument(const py::dict& policy);

}  // namespace cairn::python
