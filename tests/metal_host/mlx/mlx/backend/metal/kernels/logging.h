// Stands in for MLX's logging.h: the host has no os_log.
#pragma once
