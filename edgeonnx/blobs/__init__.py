"""How contents travel: compressed, or as differences to earlier ones. What arrives is what was named, or an error."""
