"""Power and heat: draw and clock of an accelerator, what caps of nodes leave, temperatures, and a step with both."""
